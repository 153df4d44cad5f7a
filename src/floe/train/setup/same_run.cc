#include "floe/train/setup/same_run.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>

#include "floe/core/str.h"
#include "floe/io/file/file.h"

namespace floe::train {
namespace {

namespace fs = std::filesystem;
using comm::NamedText;

constexpr std::array kOfARank = {"dist.rank", "dist.interface"};

// "train.optimizer.lr" and its value; lists count as one value.
void flatten(const nlohmann::json& value, const std::string& key, std::vector<NamedText>& into) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [name, inner] : value.items())
      flatten(inner, key.empty() ? name : str(key, ".", name), into);
  } else if (std::find(kOfARank.begin(), kOfARank.end(), key) == kOfARank.end()) {
    into.push_back({key, value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)});
  }
}

struct ModelFile {
  std::string name;  // "model.lm: config.json"
  fs::path path;
};

// What may decide what is computed; a folder may hold more.
bool is_of_model(const fs::path& path) {
  constexpr std::array<std::string_view, 7> kEndings = {".safetensors", ".bin",  ".pt", ".distcp",
                                                        ".model",       ".json", ".txt"};
  const std::string name = path.filename().string();
  return !name.starts_with('.') &&
         std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

std::vector<ModelFile> files_of(const models::ModelConfig& model) {
  std::vector<ModelFile> files;
  const auto add = [&](const std::string& key, const std::string& text) {
    std::error_code ignored;
    if (fs::is_regular_file(text, ignored)) files.push_back({key, text});
    if (!fs::is_directory(text, ignored)) return;
    std::vector<fs::path> inside;
    for (const auto& entry : fs::directory_iterator(text, ignored))
      if (entry.is_regular_file(ignored) && is_of_model(entry.path()))
        inside.push_back(entry.path());
    std::sort(inside.begin(), inside.end());
    for (const fs::path& path : inside)
      files.push_back({str(key, ": ", path.filename().string()), path});
  };
  add("model.lm", model.lm);
  add("model.vision", model.vision);
  add("model.weights", model.weights);
  add("model.tokenizer", model.tokenizer);
  if (model.lora) add("model.lora.weights", model.lora->weights);
  return files;
}

NamedText sampled(const ModelFile& file) {
  constexpr std::int64_t kSample = 64 << 10;
  const File opened(file.path.string());
  const std::int64_t size = opened.size(), count = std::min(size, kSample);
  std::uint64_t sums = 0;
  for (const std::int64_t first : {std::int64_t{0}, (size - count) / 2, size - count})
    sums = sums * 31 + crc32(opened, first, count);
  return {file.name, str(size, " bytes (sample ", sums, ")")};
}

NamedText whole(const ModelFile& file) {
  const File opened(file.path.string());
  return {file.name, str(opened.size(), " bytes (checksum ", crc32(opened, 0, opened.size()), ")")};
}

constexpr const char* kCopyAgain = "copy the same files to every host, or share one folder";

}  // namespace

void require_same_config(const config::Loaded<RunConfig>& loaded, comm::World& world) {
  std::vector<NamedText> values;
  flatten(config::to_json(loaded.values), "", values);
  values.push_back({"the folder of the run", loaded.config.run.folder()});
  world.require_same("their configuration", values,
                     "start all ranks with the same files and the same command line");
}

ModelFilesCheck::ModelFilesCheck(const models::ModelConfig& model, comm::World& world)
    : world_(world), done_(!world.on_several_hosts()) {
  if (done_) return;
  std::vector<NamedText> samples;
  if (world.is_first_on_host()) {
    const std::vector<ModelFile> files = files_of(model);
    for (const ModelFile& file : files) samples.push_back(sampled(file));
    all_ = std::async(std::launch::async, [files] {
      std::vector<NamedText> sums;
      for (const ModelFile& file : files) sums.push_back(whole(file));
      return sums;
    });
  }
  world.require_same("the files of the model", samples, kCopyAgain);
}

void ModelFilesCheck::compare_all() {
  if (std::exchange(done_, true)) return;
  world_.require_same("the files of the model",
                      all_.valid() ? all_.get() : std::vector<NamedText>(), kCopyAgain);
}

}  // namespace floe::train
