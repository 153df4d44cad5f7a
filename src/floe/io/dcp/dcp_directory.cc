#include <algorithm>
#include <cstring>
#include <filesystem>

#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/io/dcp/dcp.h"
#include "floe/io/file/json_text.h"

namespace floe {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostOpenFiles = 64;
constexpr std::int64_t kReadBytes = std::int64_t{1} << 24;

}  // namespace

DcpDirectory::DcpDirectory(const std::string& directory, Files files)
    : directory_(directory), metadata_(read_dcp_metadata(directory)) {
  if (files == Files::checked) check_files();
  for (const auto& [name, tensor] : metadata_.tensors)
    if (tensor.dtype) tensors_[name] = {name, tensor.shape, *tensor.dtype, {}};
}

void DcpDirectory::check_files() {
  for (const std::string& file : metadata_.files) {
    const fs::path path = fs::path(directory_) / file;
    std::error_code error;
    require<CheckpointError>(fs::is_regular_file(path, error), "the checkpoint '", directory_,
                             "' lacks the file '", file,
                             "' that its .metadata names: copy it again");
    const auto bytes = fs::file_size(path, error);
    require<CheckpointError>(!error, "cannot read '", path.string(), "': ", error.message());
    file_bytes_.push_back(static_cast<std::int64_t>(bytes));
  }
  const auto check = [&](const std::string& name, const DcpPlace& place) {
    const std::int64_t bytes = file_bytes_[place.file];
    if (place.offset > bytes || place.length > bytes - place.offset)
      throw CheckpointError(str("the checkpoint '", directory_, "' has ", quoted(name),
                                " at bytes ", place.offset, " to ", place.offset + place.length,
                                " of '", metadata_.files[place.file], "', but that file has ",
                                bytes, ": it is cut off; copy it again"));
  };
  for (const auto& [name, place] : metadata_.objects) check(name, place);
  for (const auto& [name, tensor] : metadata_.tensors)
    for (const DcpChunk& chunk : tensor.chunks) check(name, chunk.place);
}

const TensorInfo* DcpDirectory::find(const std::string& name) const {
  if (const auto found = tensors_.find(name); found != tensors_.end()) return &found->second;
  if (const auto refused = metadata_.tensors.find(name); refused != metadata_.tensors.end())
    throw CheckpointError(str("the checkpoint '", directory_, "': tensor ", quoted(name), " ",
                              refused->second.why_unreadable));
  return nullptr;
}

std::map<std::string, std::string> DcpDirectory::refused() const {
  std::map<std::string, std::string> result;
  for (const auto& [name, tensor] : metadata_.tensors)
    if (!tensor.dtype) result[name] = tensor.why_unreadable;
  return result;
}

std::shared_ptr<const File> DcpDirectory::open(std::size_t file) const {
  const std::lock_guard lock(mutex_);
  auto& opened = open_files_[file];
  if (opened)
    recently_used_.remove(file);
  else
    opened = std::make_shared<const File>((fs::path(directory_) / metadata_.files[file]).string());
  recently_used_.push_back(file);
  const auto result = opened;
  if (recently_used_.size() > kMostOpenFiles) {
    open_files_.erase(recently_used_.front());
    recently_used_.pop_front();
  }
  return result;
}

std::unique_ptr<TorchFile> DcpDirectory::open_item(const DcpPlace& place,
                                                   const std::string& name) const {
  try {
    return std::make_unique<TorchFile>(open(place.file), place.offset, place.length);
  } catch (const DataError& error) {
    throw CheckpointError(str("the checkpoint '", directory_, "' is damaged at ", quoted(name),
                              " (byte ", place.offset, " of '", metadata_.files[place.file],
                              "'): ", error.what()));
  }
}

pickle::Value DcpDirectory::object(const std::string& name) const {
  const auto found = metadata_.objects.find(name);
  require<CheckpointError>(found != metadata_.objects.end(), "the checkpoint '", directory_,
                           "' has no object '", name, "'",
                           did_you_mean(name, names_in(metadata_.objects)));
  return open_item(found->second, name)->root();
}

void DcpDirectory::read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
                        std::span<std::byte> out) const {
  const auto found = metadata_.tensors.find(tensor.name);
  require<CheckpointError>(found != metadata_.tensors.end(), "tensor '", tensor.name,
                           "' is not of the checkpoint '", directory_, "'");
  check_request(tensor, first_element, count, out);
  if (count == 0) return;
  for (const DcpChunk& chunk : found->second.chunks) read_chunk(tensor, chunk, first_element, out);
}

// Those of the elements of `out`, which begins with element `first` of the tensor, that the chunk
// has.
void DcpDirectory::read_chunk(const TensorInfo& tensor, const DcpChunk& chunk, std::int64_t first,
                              std::span<std::byte> out) const {
  const std::int64_t size = size_of(tensor.dtype);
  const std::int64_t last = first + static_cast<std::int64_t>(out.size()) / size;
  const std::int64_t begin = elements_before(chunk, tensor.shape, first);
  const std::int64_t end = elements_before(chunk, tensor.shape, last);
  if (begin == end) return;

  const auto target = [&](std::int64_t in_tensor, std::int64_t count) {
    return out.subspan(static_cast<std::size_t>((in_tensor - first) * size),
                       static_cast<std::size_t>(count * size));
  };
  const std::int64_t at = place_in_tensor(chunk, tensor.shape, begin);
  if (place_in_tensor(chunk, tensor.shape, end - 1) - at == end - 1 - begin)
    return read_elements(tensor, chunk, begin, target(at, end - begin));

  const std::int64_t most = std::min(end - begin, kReadBytes / size);
  std::vector<std::byte> window(static_cast<std::size_t>(most * size));
  for (std::int64_t from = begin; from < end; from += most) {
    const std::int64_t count = std::min(most, end - from);
    read_elements(tensor, chunk, from,
                  std::span(window).first(static_cast<std::size_t>(count * size)));
    for_each_run(chunk, tensor.shape, from, count,
                 [&](std::int64_t in_chunk, std::int64_t in_tensor, std::int64_t length) {
                   std::memcpy(target(in_tensor, length).data(),
                               window.data() + (in_chunk - from) * size,
                               static_cast<std::size_t>(length * size));
                 });
  }
}

void DcpDirectory::read_elements(const TensorInfo& tensor, const DcpChunk& chunk,
                                 std::int64_t first, std::span<std::byte> out) const {
  const std::int64_t size = size_of(tensor.dtype);
  const std::pair key(chunk.place.file, chunk.place.offset);
  std::optional<std::int64_t> data_offset;
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = data_offsets_.find(key); known != data_offsets_.end())
      data_offset = known->second;
  }
  if (!data_offset) {
    const auto item = open_item(chunk.place, tensor.name);
    const TensorInfo& stored = stored_tensor(*item, tensor, chunk);
    if (stored.ranges.empty()) {  // a strided view, which the item gathers
      item->read(stored, first, static_cast<std::int64_t>(out.size()) / size, out);
      num_bytes_read_ += out.size();
      return;
    }
    data_offset = stored.ranges[0].offset;
    const std::lock_guard lock(mutex_);
    data_offsets_[key] = *data_offset;
  }
  try {
    open(chunk.place.file)->read_at(*data_offset + first * size, out);
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
  num_bytes_read_ += out.size();
}

// The one tensor of an item, which must be what the metadata say.
const TensorInfo& DcpDirectory::stored_tensor(const TorchFile& item, const TensorInfo& tensor,
                                              const DcpChunk& chunk) const {
  const TensorInfo* stored = nullptr;
  try {
    stored = item.find("");
  } catch (const DataError&) {  // of a kind that floe does not read
  }
  const auto about = [&] {
    return str("the checkpoint '", directory_, "' is damaged: the item of ", quoted(tensor.name),
               " at byte ", chunk.place.offset, " of '", metadata_.files[chunk.place.file], "' ");
  };
  if (!stored) throw CheckpointError(about() + "is no tensor that floe reads");
  if (stored->dtype != tensor.dtype || stored->shape != chunk.sizes)
    throw CheckpointError(str(about(), "is a tensor of ", name_of(stored->dtype), " [",
                              join(stored->shape), "], but .metadata says ", name_of(tensor.dtype),
                              " [", join(chunk.sizes), "]"));
  return *stored;
}

}  // namespace floe
