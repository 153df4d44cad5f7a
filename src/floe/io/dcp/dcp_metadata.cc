#include <filesystem>

#include "floe/core/error.h"
#include "floe/core/str.h"
#include "floe/io/dcp/dcp.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/io/torch_file/pickle.h"
#include "floe/io/torch_file/torch_file_tensor.h"

namespace floe {
namespace {

using Sizes = std::vector<std::int64_t>;
namespace fs = std::filesystem;
using pickle::Kind;
using pickle::Value;

constexpr std::int64_t kMostMetadataBytes = std::int64_t{1} << 30;
constexpr std::size_t kMostDimensions = 64;  // as torch has it

// True for an object of this class, wherever in torch.distributed a version of torch has it.
bool is_a(const Value& value, std::string_view name) {
  if (!value.is(Kind::object) || !value.object().callable.is(Kind::global)) return false;
  const pickle::GlobalName& global = value.object().callable.global();
  return global.name == name && global.module.starts_with("torch.distributed.");
}

// Note [Shared values]
// A pickle names a value as often as it likes, so copies of texts and lists can be far larger than
// the file. Texts stay where the pickle has them until they are known to be different keys, files
// are numbers, and there may be only as many chunks as the pickle has bytes.
class Parser {
 public:
  Parser(std::string_view bytes, const std::string& file) : num_bytes_(bytes.size()), file_(file) {
    try {
      root_ = pickle::read(bytes, file);
    } catch (const DataError& error) {
      throw CheckpointError(error.what());
    }
  }

  DcpMetadata parse() {
    if (!is_a(root_, "Metadata"))
      refuse("is no metadata of torch.distributed.checkpoint, but ", shown(root_));
    const Value& storage = field(root_, "storage_data", "the metadata");
    if (!storage.has_entries()) refuse("does not say where the data lie (no storage_data)");
    for (const auto& [index, info] : storage.entries()) add_place(index, info);
    const Value& state = field(root_, "state_dict_metadata", "the metadata");
    if (!state.has_entries()) refuse("lists no tensors (no state_dict_metadata)");
    for (const auto& [name, entry] : state.entries()) add_entry(name, entry);
    if (const Value* paths = root_.attribute("planner_data"); paths && paths->has_entries())
      for (const auto& [name, path] : paths->entries())
        if (name.is(Kind::text) && path.is(Kind::tuple)) result_.paths[name.text()] = path;
    if (const Value* version = root_.attribute("version"); version && version->is(Kind::text))
      result_.version = version->text();
    return std::move(result_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    throw CheckpointError(str("'", file_, "' ", parts...));
  }

  const Value& field(const Value& object, std::string_view name, std::string_view what) const {
    const Value* value = object.attribute(name);
    if (!value) refuse("lacks the field '", name, "' of ", what);
    return *value;
  }

  const std::string& text(const Value& value, std::string_view what) const {
    if (!value.is(Kind::text)) refuse("has ", shown(value), " as ", what, "; expected a text");
    return value.text();
  }

  std::int64_t count(const Value& value, std::string_view what) const {
    if (!value.is(Kind::integer) || value.integer() < 0)
      refuse("has ", shown(value), " as ", what, "; expected an integer from 0");
    return value.integer();
  }

  std::vector<std::int64_t> sizes(const Value& value, const std::string& name,
                                  std::string_view what) const {
    std::vector<std::int64_t> result;
    try {
      result = parse_torch_size(value, what);
    } catch (const DataError& error) {
      refuse("is damaged: ", quoted(name), " ", error.what());
    }
    if (result.size() > kMostDimensions)
      refuse("is damaged: ", quoted(name), " has a ", what, " of ", result.size(), " dimensions");
    return result;
  }

  std::size_t file_number(const std::string& path) {
    const auto [found, is_new] = file_numbers_.emplace(path, result_.files.size());
    if (!is_new) return found->second;
    const fs::path relative(path);
    bool inside = !path.empty() && relative.is_relative() && path.find('\0') == std::string::npos;
    for (const fs::path& part : relative) inside = inside && part != "..";
    if (!inside)
      refuse("puts data into ", quoted(path), "; expected a file inside of the checkpoint");
    result_.files.push_back(path);
    return found->second;
  }

  void add_place(const Value& index, const Value& info) {
    if (!is_a(index, "MetadataIndex") || !is_a(info, "_StorageInfo"))
      refuse("has ", shown(info), " under ", shown(index),
             " among its places of data; floe reads what the FileSystemWriter of torch saves");
    const std::string& name = text(field(index, "fqn", "a MetadataIndex"), "the name of an item");
    if (const Value* steps = info.attribute("transform_descriptors");
        steps && !steps->is_none() && !(steps->is(Kind::list) && steps->items().empty()) &&
        !(steps->is(Kind::tuple) && steps->items().empty()))
      refuse("says that ", quoted(name), " was transformed on its way to the disk (", shown(*steps),
             "); floe reads data that lie there as they are: save without extensions");
    DcpPlace place;
    place.file = file_number(text(field(info, "relative_path", "a _StorageInfo"), "a file"));
    place.offset = count(field(info, "offset", "a _StorageInfo"), "the offset of an item");
    place.length = count(field(info, "length", "a _StorageInfo"), "the length of an item");
    const Value* offset = index.attribute("offset");
    if (!offset || offset->is_none())
      object_places_[name] = place;
    else
      chunk_places_[name][sizes(*offset, name, "offset")] = place;
  }

  void add_entry(const Value& key, const Value& entry) {
    const std::string& name = text(key, "the name of an entry");
    if (is_a(entry, "BytesStorageMetadata")) {
      const auto place = object_places_.find(name);
      if (place == object_places_.end()) refuse("does not say where ", quoted(name), " lies");
      result_.objects[name] = place->second;
      return;
    }
    if (!is_a(entry, "TensorStorageMetadata"))
      refuse("has ", shown(entry), " under ", quoted(name), "; expected a tensor or an object");
    DcpTensor tensor;
    tensor.shape = sizes(field(entry, "size", "a tensor"), name, "shape");
    std::int64_t numel = 8;  // bytes of the largest element
    for (const std::int64_t size : tensor.shape)
      if (size != 0 && __builtin_mul_overflow(numel, size, &numel))
        refuse("is damaged: ", quoted(name), " has shape [", join(tensor.shape),
               "], which is more than 2^63 bytes");
    set_dtype(tensor, field(entry, "properties", "a tensor"));
    add_chunks(name, field(entry, "chunks", "a tensor"), tensor);
    if (const std::string problem = tidy_chunks(tensor.shape, tensor.chunks); !problem.empty())
      refuse("cannot be right: tensor ", quoted(name), " ", problem);
    result_.tensors[name] = std::move(tensor);
  }

  // The dtype stands first in the state, which is a tuple.
  void set_dtype(DcpTensor& tensor, const Value& properties) const {
    if (!is_a(properties, "TensorProperties") || !properties.object().state.is(Kind::tuple) ||
        properties.object().state.items().empty())
      refuse("has ", shown(properties), " as the properties of a tensor");
    try {
      tensor.dtype = parse_torch_dtype(properties.object().state.items()[0]);
    } catch (const UnreadableTensor& error) {
      tensor.why_unreadable = error.what();
    }
  }

  void add_chunks(const std::string& name, const Value& chunks, DcpTensor& tensor) {
    if (!chunks.is(Kind::list)) refuse("has ", shown(chunks), " as the chunks of ", quoted(name));
    num_chunks_ += chunks.items().size();
    if (num_chunks_ > num_bytes_) refuse("is damaged: it has more chunks than bytes");
    const auto places = chunk_places_.find(name);
    for (const Value& value : chunks.items()) {
      if (!is_a(value, "ChunkStorageMetadata"))
        refuse("has ", shown(value), " as a chunk of ", quoted(name));
      DcpChunk chunk;
      chunk.offsets = sizes(field(value, "offsets", "a chunk"), name, "offset");
      chunk.sizes = sizes(field(value, "sizes", "a chunk"), name, "size of a chunk");
      const auto none = places == chunk_places_.end();
      const auto place = none ? Places::const_iterator() : places->second.find(chunk.offsets);
      if (none || place == places->second.end())
        refuse("does not say where the chunk at [", join(chunk.offsets), "] of tensor ",
               quoted(name), " lies");
      chunk.place = place->second;
      tensor.chunks.push_back(std::move(chunk));
    }
  }

  using Places = std::map<std::vector<std::int64_t>, DcpPlace>;

  std::size_t num_bytes_, num_chunks_ = 0;
  const std::string& file_;
  Value root_;                                       // owns the texts that the keys below look at
  std::map<std::string_view, Places> chunk_places_;  // by name, by offset
  std::map<std::string_view, DcpPlace> object_places_;
  std::map<std::string_view, std::size_t> file_numbers_;
  DcpMetadata result_;
};

}  // namespace

bool is_dcp_directory(const std::string& directory) {
  std::error_code ignored;
  return fs::is_regular_file(fs::path(directory) / kDcpMetadataFile, ignored);
}

DcpMetadata parse_dcp_metadata(std::string_view pickle, const std::string& file) {
  return Parser(pickle, file).parse();
}

DcpMetadata read_dcp_metadata(const std::string& directory) {
  const std::string path = (fs::path(directory) / kDcpMetadataFile).string();
  require<CheckpointError>(is_dcp_directory(directory), "'", directory,
                           "' has no file .metadata, which torch.distributed.checkpoint writes "
                           "last: the checkpoint is unfinished, or there is none");
  std::string bytes;
  try {
    bytes = read_text(path, kMostMetadataBytes);
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
  return parse_dcp_metadata(bytes, path);
}

}  // namespace floe
