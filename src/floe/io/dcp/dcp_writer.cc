#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/core/error.h"
#include "floe/io/dcp/dcp.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/io/torch_file/pickle.h"
#include "floe/io/torch_file/torch_file_tensor.h"
#include "floe/io/torch_file/zip.h"

namespace floe {
namespace {

using pickle::Value;

constexpr std::int64_t kPadding = 64;  // as torch.save's
constexpr std::size_t kBuffer = 4 << 20;
// Elements go out in blocks that stay in the cache between checksum and write.
constexpr std::size_t kBlock = 512 << 10;

// Puts a whole small entry at the end.
void add(std::string& archive, std::vector<zip::Placed>& entries, const char* name,
         const std::string& bytes) {
  zip::Placed entry = zip::place(str("archive/", name), static_cast<std::int64_t>(bytes.size()),
                                 static_cast<std::int64_t>(archive.size()), kPadding);
  entry.crc = crc32(bytes);
  archive += zip::local_header(entry) + bytes;
  entries.push_back(std::move(entry));
}

void add_common(std::string& archive, std::vector<zip::Placed>& entries, const Value& root) {
  add(archive, entries, "data.pkl", pickle::write(root));
  add(archive, entries, "byteorder", "little");
  add(archive, entries, "version", "3\n");
}

// An item of a .distcp file: an archive of torch.save that holds one tensor or one object.
//
// Everything but the elements is small and known beforehand, save the elements' checksum; so a
// large item is written without being put together in memory: head, elements, tail.
class DcpItem {
 public:
  DcpItem(DType dtype, const std::vector<std::int64_t>& shape) {
    add_common(small_, entries_, torch_tensor_value(dtype, "0", shape));
    std::int64_t bytes = size_of(dtype);
    for (const std::int64_t size : shape)
      require(size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes),
              "a tensor has the impossible shape [", join(shape), "]");
    entries_.push_back(
        zip::place("archive/data/0", bytes, static_cast<std::int64_t>(small_.size()), kPadding));
  }

  std::int64_t head_bytes() const { return entries_.back().data_offset; }
  std::int64_t data_bytes() const { return entries_.back().size; }
  // Both for elements with this checksum.
  std::string head(std::uint32_t data_crc) {
    entries_.back().crc = data_crc;
    return small_ + zip::local_header(entries_.back());
  }
  std::string tail(std::uint32_t data_crc) {
    entries_.back().crc = data_crc;
    return zip::directory(entries_, entries_.back().end());
  }

 private:
  std::string small_;  // the entries before the elements
  std::vector<zip::Placed> entries_;
};

// The whole item of something that is no tensor.
std::string dcp_object_item(const Value& value) {
  std::string archive;
  std::vector<zip::Placed> entries;
  add_common(archive, entries, value);
  return archive + zip::directory(entries, static_cast<std::int64_t>(archive.size()));
}

Value metadata_class(const char* name) {
  return pickle::global("torch.distributed.checkpoint.metadata", name);
}

const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "float64";
    case DType::f32: return "float32";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    case DType::f8_e4m3: return "float8_e4m3fn";
    case DType::f8_e5m2: return "float8_e5m2";
    case DType::i64: return "int64";
    case DType::i32: return "int32";
    case DType::i16: return "int16";
    case DType::i8: return "int8";
    case DType::u8: return "uint8";
    case DType::boolean: return "bool";
  }
  throw Error("a tensor has an unknown dtype");
}

Value size(const std::vector<std::int64_t>& dims) {
  pickle::Items items;
  for (const std::int64_t dim : dims) items.emplace_back(dim);
  return pickle::reduce(pickle::global("torch", "Size"), {pickle::tuple(std::move(items))});
}

Value properties(DType dtype) {
  return pickle::new_object(
      metadata_class("TensorProperties"), {},
      pickle::tuple(
          {pickle::global("torch", torch_name(dtype)),
           pickle::reduce(pickle::global("torch.serialization", "_get_layout"), {"torch.strided"}),
           false, pickle::reduce(metadata_class("_MEM_FORMAT_ENCODING"), {0}), false}));
}

// The pickle of DcpMetadata.
class MetadataWriter {
 public:
  explicit MetadataWriter(const DcpMetadata& metadata) : metadata_(metadata) {
    for (const std::string& file : metadata.files) files_.emplace_back(file);
  }

  std::string write() {
    for (const auto& [name, tensor] : metadata_.tensors) add(Value(name), tensor);
    for (const auto& [name, place] : metadata_.objects) add(Value(name), place);
    pickle::Entries paths;
    for (const auto& [name, path] : metadata_.paths) paths.emplace_back(Value(name), path);
    const Value storage_meta = pickle::new_object(metadata_class("StorageMeta"), {},
                                                  pickle::dict({{"checkpoint_id", Value()},
                                                                {"save_id", Value()},
                                                                {"load_id", Value()},
                                                                {"modules", pickle::list({})}}));
    return pickle::write(
        pickle::new_object(metadata_class("Metadata"), {},
                           pickle::dict({{"state_dict_metadata", pickle::dict(std::move(entries_))},
                                         {"planner_data", pickle::dict(std::move(paths))},
                                         {"storage_data", pickle::dict(std::move(places_))},
                                         {"storage_meta", storage_meta},
                                         {"version", "1.0.0"}})));
  }

 private:
  void add(const Value& name, const DcpTensor& tensor) {
    require(tensor.dtype.has_value(), "the tensor ", quoted(name.text()), " has no dtype to write");
    pickle::Items chunks;
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
      const DcpChunk& chunk = tensor.chunks[i];
      const Value offsets = size(chunk.offsets);
      chunks.push_back(
          pickle::new_object(metadata_class("ChunkStorageMetadata"), {},
                             pickle::dict({{"offsets", offsets}, {"sizes", size(chunk.sizes)}})));
      add_place(pickle::dict(
                    {{"fqn", name}, {"offset", offsets}, {"index", static_cast<std::int64_t>(i)}}),
                chunk.place);
    }
    entries_.emplace_back(
        name, pickle::new_object(metadata_class("TensorStorageMetadata"), {},
                                 pickle::dict({{"properties", properties(*tensor.dtype)},
                                               {"size", size(tensor.shape)},
                                               {"chunks", pickle::list(std::move(chunks))}})));
  }

  void add(const Value& name, const DcpPlace& place) {
    entries_.emplace_back(name, pickle::new_object(metadata_class("BytesStorageMetadata"), {}));
    add_place(pickle::dict({{"fqn", name}, {"index", Value()}}), place);
  }

  void add_place(Value index, const DcpPlace& place) {
    places_.emplace_back(
        pickle::new_object(metadata_class("MetadataIndex"), {}, std::move(index)),
        pickle::new_object(
            pickle::global("torch.distributed.checkpoint.filesystem", "_StorageInfo"), {},
            pickle::dict({{"relative_path", files_.at(place.file)},
                          {"offset", place.offset},
                          {"length", place.length}})));
  }

  const DcpMetadata& metadata_;
  std::vector<Value> files_;
  pickle::Entries entries_, places_;
};

}  // namespace

DcpFileWriter::DcpFileWriter(std::string path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) throw_errno("create", path_);
  waiting_.reserve(kBuffer);
}

DcpFileWriter::~DcpFileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

DcpFileWriter::Written DcpFileWriter::add_tensor(DType dtype,
                                                 const std::vector<std::int64_t>& shape,
                                                 std::span<const std::byte> data) {
  DcpItem item(dtype, shape);
  require(item.data_bytes() == static_cast<std::int64_t>(data.size()), "'", path_,
          "': a tensor of ", item.data_bytes(), " bytes was given ", data.size());
  Written written{bytes()};
  std::uint32_t crc = 0;
  std::string head;
  if (data.size() <= kBuffer / 2) {
    crc = crc32(data);
    head = item.head(crc);
    append(head);
    append(data);
  } else {
    flush();
    const std::int64_t begin = flushed_ + item.head_bytes();
    for (std::size_t at = 0; at < data.size(); at += kBlock) {
      const auto block = data.subspan(at, std::min(kBlock, data.size() - at));
      crc = crc32(block, crc);
      put(begin + static_cast<std::int64_t>(at), block);
    }
    head = item.head(crc);
    put(flushed_, std::as_bytes(std::span(head)));
    flushed_ = begin + item.data_bytes();
  }
  const std::string tail = item.tail(crc);
  append(tail);
  written.length = bytes() - written.offset;
  written.crc = crc32(tail, crc32_joined(crc32(head), crc, item.data_bytes()));
  return written;
}

DcpFileWriter::Written DcpFileWriter::add_object(const Value& value) {
  const std::string item = dcp_object_item(value);
  const Written written{bytes(), static_cast<std::int64_t>(item.size()), crc32(item)};
  append(item);
  return written;
}

void DcpFileWriter::finish() {
  flush();
  if (::fsync(fd_) != 0) throw_errno("sync", path_);
  if (::close(std::exchange(fd_, -1)) != 0) throw_errno("close", path_);
}

void DcpFileWriter::append(std::span<const std::byte> bytes) {
  if (waiting_.size() + bytes.size() > kBuffer) flush();
  waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
}

void DcpFileWriter::flush() {
  put(flushed_, waiting_);
  flushed_ += static_cast<std::int64_t>(waiting_.size());
  waiting_.clear();
}

void DcpFileWriter::put(std::int64_t offset, std::span<const std::byte> bytes) {
  require(fd_ >= 0, "'", path_, "' was written to after its end");
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::pwrite(fd_, bytes.data() + done, bytes.size() - done,
                                 static_cast<off_t>(offset + static_cast<std::int64_t>(done)));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_errno("write", path_);
    done += static_cast<std::size_t>(put);
  }
}

std::string write_dcp_metadata(const DcpMetadata& metadata) {
  return MetadataWriter(metadata).write();
}

}  // namespace floe
