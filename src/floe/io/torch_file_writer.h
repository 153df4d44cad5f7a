// Writing a file that torch.load(weights_only=True) reads, without holding its tensors: they are
// declared, their bytes come in pieces, and what the file says about them comes last.
//
//   TorchFileWriter writer("checkpoint_0.pt");
//   const pickle::Value weight = writer.declare("weight", DType::bf16, {4096, 4096});
//   for (auto piece : pieces) writer.write("weight", piece);
//   writer.finish(pickle::dict({{"epoch", 3},
//                               {"model_state_dict", pickle::ordered_dict({{"w", weight}})}}));
//
// The file appears under its name only in finish(). A value from declare() that is put into the tree
// twice is one tensor with two names in Python, as tied weights are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/io/pickle_value.h"
#include "floe/io/zip_writer.h"

namespace floe {

// Threads: one at a time. Misuse (an unknown name, too many or too few bytes) throws Error.
class TorchFileWriter {
 public:
  explicit TorchFileWriter(const std::string& path);

  // At any time before finish(), also between writes. The name is for write() only.
  pickle::Value declare(const std::string& name, DType dtype, std::vector<std::int64_t> shape);
  // The next bytes of this tensor, row-major.
  void write(const std::string& name, std::span<const std::byte> bytes);
  // Every declared byte must have been written. `root` is what torch.load returns.
  void finish(const pickle::Value& root);

 private:
  ZipWriter zip_;
  std::map<std::string, std::size_t> entries_;  // by tensor
};

}  // namespace floe
