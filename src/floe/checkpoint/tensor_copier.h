// Copying tensors of a directory of torch.distributed.checkpoint into a file of torch.save, in blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "floe/checkpoint/checkpointer.h"
#include "floe/io/dcp_directory.h"
#include "floe/io/torch_file_writer.h"

namespace floe::checkpoint {

class TensorCopier {
 public:
  TensorCopier(const DcpDirectory& from, TorchFileWriter& to) : from_(from), to_(to) {}

  // The whole tensor; the result stands for it in the file's pickle.
  pickle::Value copy(const std::string& name);
  // A tensor of fp32 made of parts of others: `name_of` gives the tensor that stands for a parameter,
  // or nothing for zeros.
  pickle::Value copy(const std::string& name, const FileTensor& tensor,
                     const std::function<std::string(const std::string&)>& name_of);

 private:
  void write(const std::string& name, const TensorInfo& info, std::int64_t first,
             std::int64_t count);
  void write_as_floats(const std::string& name, const TensorInfo& info, std::int64_t first,
                       std::int64_t count);
  void write_zeros(const std::string& name, std::int64_t bytes);

  const DcpDirectory& from_;
  TorchFileWriter& to_;
  std::vector<std::byte> block_;
};

}  // namespace floe::checkpoint
