#include "floe/cli/inspect_path.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "floe/cli/find_checkpoint.h"
#include "floe/core/error.h"
#include "floe/io/file.h"

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
  if (is_run_folder(folder)) return PathKind::run;
  bool vocabulary = false, weights = false, tars = false, checkpoint = false;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    vocabulary = vocabulary || is_vocabulary(name);
    weights = weights || is_weights(name);
    tars = tars || is_tar(name);
    checkpoint = checkpoint || name == ".metadata" || name.ends_with(".distcp");
  }
  if (checkpoint) return PathKind::tensors;
  if (weights && vocabulary) return PathKind::model;
  if (weights) return PathKind::tensors;
  if (vocabulary) return PathKind::tokenizer;
  require<ConfigError>(tars, "the folder '", folder,
                       "' has no tar shards, no weights and no tokenizer to inspect");
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
  if (is_tar(name)) return PathKind::shards;
  if (is_vocabulary(name)) return PathKind::tokenizer;
  if (is_weights(name) || ends_with_any(name, {".pt", ".pth", ".ckpt"})) return PathKind::tensors;
  if (name.ends_with(".model")) return PathKind::tokenizer;
  const std::string bytes = beginning_of(path, 512);
  const bool tar = bytes.size() >= 262 && std::string_view(bytes).substr(257, 5) == "ustar";
  if (tar || bytes.starts_with("\x1f\x8b")) return PathKind::shards;
  if (bytes.starts_with("PK\x03\x04")) return PathKind::tensors;
  if (bytes.size() > 8 && bytes[8] == '{') return PathKind::tensors;  // safetensors
  throw ConfigError(
      str("'", path, "' is no tar shard, safetensors or torch file, tokenizer or model folder"));
}

}  // namespace

PathKind kind_of(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return kind_of_folder(path);
  if (fs::is_regular_file(path, ignored)) return kind_of_file(path);
  return PathKind::shards;
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
