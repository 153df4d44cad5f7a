// Reading a directory of torch.distributed.checkpoint, whoever wrote it: FSDP, DDP, a plain state
// dict, Lightning, or floe.
//
//   DcpDirectory checkpoint("runs/demo/checkpoints/last");
//   checkpoint.names();                               // "model.perceiver.latents", ...
//   checkpoint.read(*info, first, count, out);        // from as many chunks as hold these elements
//   checkpoint.object("optimizer.param_groups.0.lr").real();
//
// Opening reads .metadata and the sizes of the files of data. read() reads the elements asked for, and
// of each item that it touches for the first time the description of where in it they lie.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "floe/io/dcp_metadata.h"
#include "floe/io/pickle_value.h"
#include "floe/io/tensor_source.h"
#include "floe/io/torch_file.h"

namespace floe {

// Every defect is one CheckpointError that names the directory, the file and the tensor.
class DcpDirectory : public TensorSource {
 public:
  // Throws for metadata that are missing or wrong, and for files of data that are missing or too short
  // for what the metadata put there.
  explicit DcpDirectory(const std::string& directory);

  std::vector<std::string> names() const override { return names_in(tensors_); }
  // Throws for a tensor of a kind that floe does not read (complex, say).
  const TensorInfo* find(const std::string& name) const override;
  void read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
            std::span<std::byte> out) const override;
  std::uint64_t bytes_read() const override { return num_bytes_read_; }

  const std::string& directory() const { return directory_; }
  const DcpMetadata& metadata() const { return metadata_; }
  // Bytes of each of metadata().files.
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

  std::string directory_;
  DcpMetadata metadata_;
  std::vector<std::int64_t> file_bytes_;
  std::map<std::string, TensorInfo> tensors_;

  mutable std::mutex mutex_;
  mutable std::map<std::size_t, std::shared_ptr<const File>> open_files_;
  mutable std::list<std::size_t> recently_used_;
  // Where the elements of a chunk begin in its file, by place; those found so far. Chunks that are not
  // row-major are not among them.
  mutable std::map<std::pair<std::size_t, std::int64_t>, std::int64_t> data_offsets_;
  mutable std::atomic<std::uint64_t> num_bytes_read_{0};
};

}  // namespace floe
