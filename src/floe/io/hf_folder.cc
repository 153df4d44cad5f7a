#include "floe/io/hf_folder.h"

#include <algorithm>
#include <filesystem>

#include "floe/core/error.h"
#include "floe/io/json_text.h"
#include "floe/io/open_tensors.h"

namespace floe {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostIndexBytes = 100'000'000;

std::string first_of(const fs::path& folder, const std::vector<std::string>& names) {
  std::error_code ignored;
  for (const std::string& name : names)
    if (fs::exists(folder / name, ignored)) return (folder / name).string();
  return "";
}

std::vector<std::string> sorted_files(const fs::path& folder) {
  std::error_code ignored;
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    files.push_back(entry.path().filename().string());
  std::sort(files.begin(), files.end());
  return files;
}

std::string find_transformers(const fs::path& folder) {
  return first_of(folder, {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                           "pytorch_model.bin.index.json"});
}

std::string find_open_clip(const fs::path& folder) {
  const std::string usual =
      first_of(folder, {"open_clip_model.safetensors", "open_clip_pytorch_model.bin"});
  if (!usual.empty()) return usual;
  std::vector<std::string> others;
  for (const std::string& file : sorted_files(folder))
    if (file.starts_with("open_clip_") && file.ends_with(".safetensors")) others.push_back(file);
  return others.size() == 1 ? (folder / others[0]).string() : "";
}

// Of one entry of the index; throws unless it is a file name that stays in the folder.
std::string shard_path(const std::string& index_path, const std::string& name,
                       const nlohmann::json& entry) {
  require<DataError>(entry.is_string(), "'", index_path, "': the shard of tensor ", quoted(name),
                     " must be a file name, not ", shown(entry));
  const fs::path shard = entry.get<std::string>();
  bool inside =
      !shard.empty() && shard.is_relative() && shard.native().find('\0') == std::string::npos;
  for (const fs::path& part : shard) inside = inside && part != "..";
  // An index inside an index could name itself.
  require<DataError>(inside && shard.extension() != ".json", "'", index_path, "': the shard ",
                     shown(entry), " of tensor ", quoted(name),
                     " must be a file of tensors beside the index");
  const fs::path path = fs::path(index_path).parent_path() / shard;
  std::error_code ignored;
  require<DataError>(fs::is_regular_file(path, ignored), "'", index_path, "' puts tensor ",
                     quoted(name), " into '", path.string(),
                     "', but there is no such file: is the download complete?");
  return path.string();
}

}  // namespace

std::string find_weights(const std::string& folder, FolderNaming first) {
  std::string found =
      first == FolderNaming::transformers ? find_transformers(folder) : find_open_clip(folder);
  if (found.empty())
    found =
        first == FolderNaming::transformers ? find_open_clip(folder) : find_transformers(folder);
  if (found.empty()) found = first_of(folder, {"checkpoint.pt"});
  if (!found.empty()) return found;
  std::vector<std::string> weights;
  for (const std::string& file : sorted_files(folder))
    for (const char* end : {".safetensors", ".bin", ".pt", ".pth", ".ckpt"})
      if (file.ends_with(end)) weights.push_back(file);
  throw DataError(str("the folder '", folder,
                      "' has neither model.safetensors nor pytorch_model.bin, an index of either, "
                      "or weights of open_clip",
                      weights.empty() ? "" : "; name the file itself: ", join(weights)));
}

IndexedShards::IndexedShards(const std::string& index_path) {
  const auto index = parse_json(read_text(index_path, kMostIndexBytes), index_path);
  require<DataError>(index.is_object() && index.contains("weight_map") &&
                         index["weight_map"].is_object() && !index["weight_map"].empty(),
                     "'", index_path,
                     "' is no index of shards: expected an object with a non-empty \"weight_map\" "
                     "object");
  for (const auto& [name, entry] : index["weight_map"].items()) {
    const std::string path = shard_path(index_path, name, entry);
    auto& shard = shards_[path];
    if (!shard) shard = open_tensors(path);
    require<DataError>(shard->find(name), "'", index_path, "' puts tensor ", quoted(name),
                       " into '", path, "', but that file does not have it");
    owner_[name] = shard.get();
  }
}

const TensorInfo* IndexedShards::find(const std::string& name) const {
  const auto found = owner_.find(name);
  return found == owner_.end() ? nullptr : found->second->find(name);
}

void IndexedShards::read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
                         std::span<std::byte> out) const {
  const auto found = owner_.find(tensor.name);
  require<DataError>(found != owner_.end(), "tensor ", quoted(tensor.name),
                     " is not of this folder");
  found->second->read(tensor, first_element, count, out);
}

std::uint64_t IndexedShards::bytes_read() const {
  std::uint64_t sum = 0;
  for (const auto& [path, shard] : shards_) sum += shard->bytes_read();
  return sum;
}

}  // namespace floe
