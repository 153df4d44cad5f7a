#include "floe/io/safetensors.h"

#include <array>
#include <bit>
#include <cstring>
#include <filesystem>

#include "floe/core/error.h"
#include "floe/io/json_text.h"

namespace floe {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor files are little-endian");

constexpr std::int64_t kMostHeaderBytes = 100'000'000;  // the limit of the reference reader
constexpr std::int64_t kMostIndexBytes = 100'000'000;

template <class Item>
std::vector<std::string> keys_of(const std::map<std::string, Item>& map) {
  std::vector<std::string> keys;
  keys.reserve(map.size());
  for (const auto& [key, item] : map) keys.push_back(key);
  return keys;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) {
  auto file = std::make_shared<const File>(path);
  require<DataError>(file->size() >= 8, "'", path, "' has ", file->size(),
                     " bytes, too few for the 8-byte header length of a safetensors file");
  std::array<std::byte, 8> prefix;
  file->read_at(0, prefix);
  std::uint64_t length = 0;
  std::memcpy(&length, prefix.data(), sizeof length);
  require<DataError>(length <= static_cast<std::uint64_t>(kMostHeaderBytes) &&
                         length <= static_cast<std::uint64_t>(file->size() - 8),
                     "'", path, "' is no safetensors file or is cut off: its header would have ",
                     length, " bytes, but ", file->size() - 8, " follow (and at most ",
                     kMostHeaderBytes, " are allowed)");
  std::string json(static_cast<std::size_t>(length), '\0');
  file->read_at(8, std::as_writable_bytes(std::span(json)));
  header_ =
      parse_safetensors_header(json, path, 8 + static_cast<std::int64_t>(length), file->size());
  keep_open(std::move(file));
}

std::vector<std::string> SafetensorsFile::names() const { return keys_of(header_.tensors); }

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto found = header_.tensors.find(name);
  return found == header_.tensors.end() ? nullptr : &found->second;
}

SafetensorsFolder::SafetensorsFolder(const std::string& index_path) {
  namespace fs = std::filesystem;
  const auto index = parse_json(read_text(index_path, kMostIndexBytes), index_path);
  require<DataError>(index.is_object() && index.contains("weight_map") &&
                         index["weight_map"].is_object() && !index["weight_map"].empty(),
                     "'", index_path,
                     "' is no index of safetensors shards: "
                     "expected an object with a non-empty \"weight_map\" object");
  for (const auto& [name, entry] : index["weight_map"].items()) {
    require<DataError>(entry.is_string(), "'", index_path, "': the shard of tensor ", quoted(name),
                       " must be a file name, not ", shown(entry));
    const fs::path shard = entry.get<std::string>();
    bool inside =
        !shard.empty() && shard.is_relative() && shard.native().find('\0') == std::string::npos;
    for (const fs::path& part : shard) inside = inside && part != "..";
    require<DataError>(inside, "'", index_path, "': the shard ", shown(entry), " of tensor ",
                       quoted(name), " must be a file beside the index");
    const std::string path = (fs::path(index_path).parent_path() / shard).string();
    auto& file = shards_[path];
    if (!file) file = std::make_unique<SafetensorsFile>(path);
    require<DataError>(file->find(name), "'", index_path, "' puts tensor ", quoted(name), " into '",
                       path, "', but that file does not have it");
    owner_[name] = file.get();
  }
}

std::vector<std::string> SafetensorsFolder::names() const { return keys_of(owner_); }

const TensorInfo* SafetensorsFolder::find(const std::string& name) const {
  const auto found = owner_.find(name);
  return found == owner_.end() ? nullptr : found->second->find(name);
}

void SafetensorsFolder::read(const TensorInfo& tensor, std::int64_t first_element,
                             std::int64_t count, std::span<std::byte> out) const {
  const auto found = owner_.find(tensor.name);
  require<DataError>(found != owner_.end(), "tensor ", quoted(tensor.name),
                     " is not of this folder");
  found->second->read(tensor, first_element, count, out);
}

std::uint64_t SafetensorsFolder::bytes_read() const {
  std::uint64_t sum = 0;
  for (const auto& [path, shard] : shards_) sum += shard->bytes_read();
  return sum;
}

std::unique_ptr<TensorSource> open_tensors(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path place = path;
  std::error_code ignored;
  if (fs::is_directory(place, ignored)) {
    const fs::path single = place / "model.safetensors",
                   index = place / "model.safetensors.index.json";
    if (fs::exists(single, ignored)) return std::make_unique<SafetensorsFile>(single.string());
    if (fs::exists(index, ignored)) return std::make_unique<SafetensorsFolder>(index.string());
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(place, ignored))
      if (entry.path().extension() == ".safetensors")
        found.push_back(entry.path().filename().string());
    throw DataError(str("the folder '", path,
                        "' has neither model.safetensors nor model.safetensors.index.json",
                        found.empty() ? "" : "; name the file itself: ", join(found)));
  }
  if (place.extension() == ".json") return std::make_unique<SafetensorsFolder>(path);
  return std::make_unique<SafetensorsFile>(path);
}

}  // namespace floe
