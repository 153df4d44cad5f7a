// Directories of torch.distributed.checkpoint (DCP): the file .metadata says which tensors and
// objects there are, and files *.distcp, one or more per rank, hold their bytes.
//
// A tensor is a set of chunks: rectangles of its elements, each stored on its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/io/torch_file/pickle.h"
#include "floe/io/torch_file/torch_file.h"

namespace floe {

// ---- chunks ----

// The elements offsets[d] <= i_d < offsets[d] + sizes[d].
struct Rectangle {
  std::vector<std::int64_t> offsets, sizes;

  std::int64_t numel() const;
};

// Elements [first, first + count) of a row-major tensor as the fewest rectangles, each of which is
// a run itself, in order: at most 2 × dimensions − 1 of them. None for count 0.
std::vector<Rectangle> rectangles_of(const std::vector<std::int64_t>& shape, std::int64_t first,
                                     std::int64_t count);

// Where an item lies: [offset, offset + length) of a file is one archive of torch.save.
struct DcpPlace {
  std::size_t file = 0;  // of DcpMetadata::files
  std::int64_t offset = 0, length = 0;
};

// The elements of a rectangle, row-major, and their bytes.
struct DcpChunk {
  std::vector<std::int64_t> offsets, sizes;
  DcpPlace place;

  std::int64_t numel() const;
};

// Sorts the chunks by their offsets, drops empty ones and replicas (the same rectangle again), and
// checks that the rest is a tiling of the tensor. The result is what is wrong, as a part of a
// sentence ("has a chunk ..."); empty when nothing is. `shape` must have fewer than 2^63 elements.
std::string tidy_chunks(const std::vector<std::int64_t>& shape, std::vector<DcpChunk>& chunks);

// Note [Elements of a chunk]
// A chunk's row-major order and its tensor's agree, so those of its elements that lie in a
// row-major range of the tensor follow each other in the chunk: one range of its bytes. Both are
// made of runs, elements that are neighbours in the tensor as well.
//
// How many of the chunk's elements come before `element` of the tensor.
std::int64_t elements_before(const DcpChunk& chunk, const std::vector<std::int64_t>& shape,
                             std::int64_t element);

// The other way: which element of the tensor is element number `element` of the chunk.
std::int64_t place_in_tensor(const DcpChunk& chunk, const std::vector<std::int64_t>& shape,
                             std::int64_t element);

// Calls `visit` for the runs of elements [first, first + count) of the chunk, in order: where a run
// begins in the chunk and in the tensor, and its length.
void for_each_run(const DcpChunk& chunk, const std::vector<std::int64_t>& shape, std::int64_t first,
                  std::int64_t count,
                  const std::function<void(std::int64_t in_chunk, std::int64_t in_tensor,
                                           std::int64_t length)>& visit);

// ---- the file .metadata ----
//
// It is one pickle of plain data classes; it is read as data (pickle.h), nothing runs. What
// versions of torch differ in is accepted: storage_meta and version may be missing (torch 2.2 and
// before), so may planner_data, and TensorProperties may come from the older module.

constexpr const char* kDcpMetadataFile = ".metadata";

struct DcpTensor {
  std::vector<std::int64_t> shape;
  std::optional<DType> dtype;  // none: of a kind that floe does not read
  std::string why_unreadable;  // then: a part of a sentence: "has dtype torch.complex64, ..."
  // Disjoint, and together they are the whole tensor; without empty ones and without replicas. In
  // the order of their offsets.
  std::vector<DcpChunk> chunks;
};

struct DcpMetadata {
  std::map<std::string, DcpTensor> tensors;  // by flat name: "model.layers.0.weight"
  // What is no tensor (numbers, texts, lists of them), each pickled by torch.save; by flat name.
  std::map<std::string, DcpPlace> objects;
  // Of the data: relative, inside of the directory.
  std::vector<std::string> files;
  // The way to a flat name through nested dicts (text) and lists (integers), as tuples:
  // "optimizer.param_groups.0.lr" -> ("optimizer", "param_groups", 0, "lr").
  std::map<std::string, pickle::Value> paths;
  std::string version;  // "1.0.0"; empty when torch did not write one
};

// True when the directory has the metadata of a DCP checkpoint.
bool is_dcp_directory(const std::string& directory);

// Throws CheckpointError, one sentence that names the file and the entry, for metadata that is
// missing (an unfinished save), damaged, or says what cannot be: a chunk outside of its tensor,
// chunks that overlap, elements that no chunk has, a chunk without a place, a file outside of the
// directory.
DcpMetadata read_dcp_metadata(const std::string& directory);
// The same of the bytes of one metadata file; `file` is for messages.
DcpMetadata parse_dcp_metadata(std::string_view pickle, const std::string& file);

// The bytes to write, for torch 2.3 and later. Tensors must have a dtype; two tensors may share
// their places (tied weights).
std::string write_dcp_metadata(const DcpMetadata& metadata);

// ---- the files of data ----

// Writing one rank's .distcp file: items back to back, each with a checksum of all its bytes.
class DcpFileWriter {
 public:
  struct Written {
    std::int64_t offset = 0, length = 0;
    std::uint32_t crc = 0;
  };

  // Creates the file, which must not exist. Every member throws Error that names the file when the
  // disk does not take it.
  explicit DcpFileWriter(std::string path);
  ~DcpFileWriter();
  DcpFileWriter(const DcpFileWriter&) = delete;
  DcpFileWriter& operator=(const DcpFileWriter&) = delete;

  // `data`: the elements, row-major, in host memory.
  Written add_tensor(DType dtype, const std::vector<std::int64_t>& shape,
                     std::span<const std::byte> data);
  Written add_object(const pickle::Value& value);
  std::int64_t bytes() const { return flushed_ + static_cast<std::int64_t>(waiting_.size()); }
  // Returns when everything is on disk. Nothing may be added afterwards.
  void finish();

 private:
  void append(std::span<const std::byte> bytes);
  void append(const std::string& bytes) { append(std::as_bytes(std::span(bytes))); }
  void flush();
  void put(std::int64_t offset, std::span<const std::byte> bytes);

  std::string path_;
  int fd_ = -1;
  std::vector<std::byte> waiting_;  // small items, to be written together
  std::int64_t flushed_ = 0;
};

// Reading a directory of torch.distributed.checkpoint, whoever wrote it: FSDP, DDP, a plain state
// dict, Lightning, or floe.
//
//   DcpDirectory checkpoint("runs/demo/checkpoints/last");
//   checkpoint.names();                               // "model.perceiver.latents", ...
//   checkpoint.read(*info, first, count, out);        // from as many chunks as hold these elements
//   checkpoint.object("optimizer.param_groups.0.lr").real();
//
// Opening reads .metadata and the sizes of the files of data. read() reads the elements asked for,
// and of each item that it touches for the first time the description of where in it they lie.
//
// Every defect is one CheckpointError that names the directory, the file and the tensor.
class DcpDirectory : public TensorSource {
 public:
  // Whether the files of data are looked at when the directory is opened. Where somebody has done
  // so already, all of them by all ranks would be a million at a thousand ranks.
  enum class Files { checked, known };
  // Throws for metadata that are missing or wrong, and, unless they are known to be well, for files
  // of data that are missing or too short for what the metadata put there.
  explicit DcpDirectory(const std::string& directory, Files files = Files::checked);

  std::vector<std::string> names() const override { return names_in(tensors_); }
  // Throws for a tensor of a kind that floe does not read (complex, say).
  const TensorInfo* find(const std::string& name) const override;
  void read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
            std::span<std::byte> out) const override;
  std::uint64_t bytes_read() const override { return num_bytes_read_; }

  const std::string& directory() const { return directory_; }
  const DcpMetadata& metadata() const { return metadata_; }
  // Bytes of each of metadata().files; nothing where these were known.
  const std::vector<std::int64_t>& file_bytes() const { return file_bytes_; }

  // What is no tensor: a number, a text, a list of them. Throws when there is no such object.
  pickle::Value object(const std::string& name) const;
  bool has_object(const std::string& name) const { return metadata_.objects.contains(name); }

  // Tensors that names() leaves out, and why, as a part of a sentence.
  std::map<std::string, std::string> refused() const;

 private:
  // Note [Open files]
  // A checkpoint of a thousand ranks has a thousand files; only the last used ones stay open.
  std::shared_ptr<const File> open(std::size_t file) const;
  std::unique_ptr<TorchFile> open_item(const DcpPlace& place, const std::string& name) const;
  void read_chunk(const TensorInfo& tensor, const DcpChunk& chunk, std::int64_t first,
                  std::span<std::byte> out) const;
  void read_elements(const TensorInfo& tensor, const DcpChunk& chunk, std::int64_t first,
                     std::span<std::byte> out) const;
  const TensorInfo& stored_tensor(const TorchFile& item, const TensorInfo& tensor,
                                  const DcpChunk& chunk) const;

  void check_files();

  std::string directory_;
  DcpMetadata metadata_;
  std::vector<std::int64_t> file_bytes_;
  std::map<std::string, TensorInfo> tensors_;

  mutable std::mutex mutex_;
  mutable std::map<std::size_t, std::shared_ptr<const File>> open_files_;
  mutable std::list<std::size_t> recently_used_;
  // Where the elements of a chunk begin in its file, by place; those found so far. Chunks that are
  // not row-major are not among them.
  mutable std::map<std::pair<std::size_t, std::int64_t>, std::int64_t> data_offsets_;
  mutable std::atomic<std::uint64_t> num_bytes_read_{0};
};

}  // namespace floe
