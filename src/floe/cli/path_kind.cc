#include "floe/cli/path_kind.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "floe/checkpoint/load/resume.h"
#include "floe/core/error.h"
#include "floe/data/sources/text_files.h"
#include "floe/io/file/file.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kVocabularies{"tokenizer.json", "tokenizer.model",
                                                        "vocab.json"};

bool ends_with_any(const std::string& name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_vocabulary(const std::string& name) {
  return std::find(kVocabularies.begin(), kVocabularies.end(), name) != kVocabularies.end();
}

bool is_weights(const std::string& name) {
  return ends_with_any(name,
                       {".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json"});
}

bool is_tar(const std::string& name) {
  return ends_with_any(name,
                       {".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4"});
}

PathKind kind_of_folder(const std::string& folder) {
  bool vocabulary = false, weights = false, tars = false, checkpoint = false, config = false;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    vocabulary = vocabulary || is_vocabulary(name);
    weights = weights || is_weights(name) || name == "checkpoint.pt";
    tars = tars || is_tar(name);
    config = config || name == "config.json" || name == "adapter_config.json";
    checkpoint =
        checkpoint || name == ".metadata" || name.ends_with(".distcp") || name == "floe.json";
  }
  require<ConfigError>(!error, "the folder '", folder, "' cannot be read: ", error.message());
  if (checkpoint) return PathKind::checkpoint;
  if (weights && config) return PathKind::model;
  if (weights) return PathKind::tensors;
  if (vocabulary) return PathKind::tokenizer;
  if (config) return PathKind::model;
  require<ConfigError>(
      tars, "the folder '", folder,
      "' is nothing that floe knows: no run folder (config.yaml, checkpoints/), no "
      "checkpoint (.metadata), and it has no weights, no tokenizer and no tar "
      "shards");
  return PathKind::shards;
}

// The first bytes of the file, fewer when it is shorter.
std::string beginning_of(const std::string& path, std::size_t num_bytes) {
  const File file(path);
  std::string bytes(std::min<std::size_t>(num_bytes, static_cast<std::size_t>(file.size())), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

PathKind kind_of_file(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  if (is_tar(name) || data::is_json_lines(name)) return PathKind::shards;
  if (is_vocabulary(name)) return PathKind::tokenizer;
  if (ends_with_any(name, {".yaml", ".yml"})) return PathKind::yaml;
  if (is_weights(name)) return PathKind::tensors;
  if (name.ends_with(".json")) return PathKind::yaml;  // JSON is YAML
  if (ends_with_any(name, {".pt", ".pth", ".ckpt"})) return PathKind::checkpoint;
  if (name.ends_with(".model")) return PathKind::tokenizer;
  const std::string bytes = beginning_of(path, 512);
  const bool tar = bytes.size() >= 262 && std::string_view(bytes).substr(257, 5) == "ustar";
  if (tar || bytes.starts_with("\x1f\x8b")) return PathKind::shards;
  if (bytes.starts_with("PK\x03\x04")) return PathKind::checkpoint;
  if (bytes.size() > 8 && bytes[8] == '{') return PathKind::tensors;  // safetensors
  throw ConfigError(str("'", path,
                        "' is nothing that floe knows: no YAML, no safetensors or torch file, no "
                        "tokenizer and no tar shard"));
}

}  // namespace

PathKind kind_of(const std::string& path) {
  if (!path_exists(path)) return PathKind::nothing;
  std::error_code ignored;
  if (!checkpoint::run_at(path).empty()) return PathKind::run;
  if (fs::is_directory(path, ignored)) return kind_of_folder(path);
  if (fs::is_regular_file(path, ignored)) return kind_of_file(path);
  return PathKind::shards;  // a pipe
}

bool has_vocabulary(const std::string& folder) {
  return std::any_of(kVocabularies.begin(), kVocabularies.end(),
                     [&](std::string_view name) { return path_exists(fs::path(folder) / name); });
}

std::string as_shards(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  std::vector<std::string> tars;
  for (const auto& entry : fs::directory_iterator(path))
    if (is_tar(entry.path().filename().string())) tars.push_back(entry.path().string());
  std::sort(tars.begin(), tars.end());
  return join(tars, "::");
}

}  // namespace floe::cli
