#include "floe/io/tensors/open_tensors.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "floe/core/error.h"
#include "floe/io/dcp/dcp.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/io/safetensors/safetensors.h"
#include "floe/io/torch_file/torch_file.h"

namespace floe {
namespace {

namespace fs = std::filesystem;
using pickle::Kind;

constexpr std::int64_t kMostIndexBytes = 100'000'000;

std::string first_of(const fs::path& folder, const std::vector<std::string>& names) {
  std::error_code ignored;
  for (const std::string& name : names)
    if (fs::exists(folder / name, ignored)) return (folder / name).string();
  return "";
}

std::string find_transformers(const fs::path& folder) {
  return first_of(folder, {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                           "pytorch_model.bin.index.json"});
}

std::string find_open_clip(const fs::path& folder) {
  std::string usual =
      first_of(folder, {"open_clip_model.safetensors", "open_clip_pytorch_model.bin"});
  if (!usual.empty()) return usual;
  std::vector<std::string> others;
  for (const std::string& file : file_names_in(folder))
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

bool is_torch_file(const std::string& path) {
  const fs::path extension = fs::path(path).extension();
  for (const char* usual : {".bin", ".pt", ".pth", ".ckpt"})
    if (extension == usual) return true;
  return ZipReader::is_zip(File(path));
}

std::set<std::string> parts_of_directory(const DcpDirectory& directory) {
  std::set<std::string> parts;
  const DcpMetadata& metadata = directory.metadata();
  for (const auto& [name, tensor] : metadata.tensors) {
    const auto path = metadata.paths.find(name);
    if (path == metadata.paths.end()) continue;
    const pickle::Items& steps = path->second.items();
    if (steps.size() > 1 && steps[0].is(Kind::text)) parts.insert(steps[0].text());
  }
  return parts;
}

std::set<std::string> parts_of_file(const TorchFile& file) {
  std::set<std::string> parts;
  if (!file.root().has_entries()) return parts;
  for (const auto& [key, value] : file.root().entries())
    if (key.is(Kind::text) && value.has_entries()) parts.insert(key.text());
  return parts;
}

bool any_starts_with(const std::vector<std::string>& names, std::string_view prefix) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.starts_with(prefix); });
}

const pickle::Value kNone{};

const pickle::Value& value_at(const TorchFile& file, const std::string& key) {
  const pickle::Value* value = file.root().find(key);
  return value ? *value : kNone;
}

std::string unmarked(std::string name) {
  constexpr std::array<std::string_view, 3> kMarks = {"_fsdp_wrapped_module.",
                                                      "_checkpoint_wrapped_module.", "_orig_mod."};
  for (const std::string_view mark : kMarks)
    for (auto at = name.find(mark); at != std::string::npos; at = name.find(mark, at))
      name.erase(at, mark.size());
  constexpr std::string_view kModule = "module.";
  if (name.starts_with(kModule)) name.erase(0, kModule.size());
  return name;
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
  for (const std::string& file : file_names_in(folder))
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

std::unique_ptr<TensorSource> open_tensors(const std::string& path) {
  std::error_code ignored;
  if (is_dcp_directory(path)) return std::make_unique<DcpDirectory>(path);
  if (fs::is_directory(path, ignored)) return open_tensors(find_weights(path));
  if (fs::path(path).extension() == ".json") return std::make_unique<IndexedShards>(path);
  if (is_torch_file(path)) return std::make_unique<TorchFile>(path);
  return std::make_unique<SafetensorsFile>(path);
}

std::vector<std::string> parts_of(const TensorSource& source) {
  std::set<std::string> parts;
  if (const auto* directory = dynamic_cast<const DcpDirectory*>(&source))
    parts = parts_of_directory(*directory);
  else if (const auto* file = dynamic_cast<const TorchFile*>(&source))
    parts = parts_of_file(*file);
  return {parts.begin(), parts.end()};
}

std::string weights_prefix(const TensorSource& source) {
  const std::vector<std::string> names = source.names(), parts = parts_of(source);
  for (const char* prefix : {"model_state_dict.", "state_dict."})
    if (any_starts_with(names, prefix)) return prefix;
  const bool has_model = parts.empty()
                             ? any_starts_with(names, "optim")
                             : std::find(parts.begin(), parts.end(), "model") != parts.end();
  return has_model && any_starts_with(names, "model.") ? "model." : "";
}

WeightNaming::WeightNaming(const TensorSource& source) : prefix_(weights_prefix(source)) {
  if (prefix_ != "state_dict." || !is_of_lightning(source)) return;
  constexpr const char* kNetwork = "model.";
  for (const auto& [name, original] : names_below(source, prefix_))
    if (!unmarked(name).starts_with(kNetwork)) return;
  network_ = kNetwork;
}

std::string WeightNaming::plain(std::string name) const {
  name = unmarked(std::move(name));
  if (name.starts_with(network_)) name.erase(0, network_.size());
  return name;
}

Renames weight_names(const TensorSource& source, const WeightNaming& naming,
                     const std::string& path) {
  Renames renames;
  for (const auto& [name, original] : names_below(source, naming.prefix())) {
    const auto [known, is_new] = renames.emplace(naming.plain(name), original);
    require<DataError>(is_new, "'", path, "': ", quoted(known->second), " and ", quoted(original),
                       " are both the weights of ", quoted(known->first));
  }
  return renames;
}

pickle::Value state_value(const TensorSource& source, const std::string& key) {
  if (const auto* file = dynamic_cast<const TorchFile*>(&source)) return value_at(*file, key);
  const auto* directory = dynamic_cast<const DcpDirectory*>(&source);
  if (!directory) return kNone;
  const std::string meta = directory->directory() + "/meta.pt";
  return path_exists(meta) ? value_at(TorchFile(meta), key) : kNone;
}

std::string unreadable_in_words(const TensorSource& source, const std::string& prefix) {
  std::map<std::string, std::string> refused;
  if (const auto* file = dynamic_cast<const TorchFile*>(&source)) refused = file->refused();
  if (const auto* directory = dynamic_cast<const DcpDirectory*>(&source))
    refused = directory->refused();
  std::erase_if(refused, [&](const auto& entry) { return !entry.first.starts_with(prefix); });
  if (refused.empty()) return "";
  const auto& [name, why] = *refused.begin();
  return str(counted(static_cast<std::int64_t>(refused.size()), "tensor"),
             " cannot be read, such as ", quoted(name), ", which ", why);
}

bool is_of_lightning(const TensorSource& source) {
  return !state_value(source, "pytorch-lightning_version").is_none();
}

}  // namespace floe
