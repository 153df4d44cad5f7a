// Writing one safetensors file without holding it: all tensors are declared first, then their bytes
// come in pieces, in any order of tensors.
//
//   SafetensorsWriter writer("out.safetensors", {{"format", "pt"}});
//   writer.declare("weight", DType::bf16, {4096, 4096});
//   for (auto piece : pieces) writer.write("weight", piece);
//   writer.finish();
//
// The file appears under its name only in finish(). Larger element types lie first, as in the
// reference writer: readers that map the file then find every tensor aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/io/atomic_file.h"
#include "floe/io/safetensors.h"

namespace floe {

// Threads: one at a time. Misuse (an unknown name, too many or too few bytes) throws Error.
class SafetensorsWriter {
 public:
  explicit SafetensorsWriter(const std::string& path, Metadata metadata = {});

  // Only before the first write().
  void declare(const std::string& name, DType dtype, std::vector<std::int64_t> shape);
  // The next bytes of this tensor, row-major.
  void write(const std::string& name, std::span<const std::byte> bytes);
  // Every declared byte must have been written.
  void finish();

 private:
  struct Tensor {
    DType dtype;
    std::vector<std::int64_t> shape;
    std::int64_t bytes = 0, written = 0, offset = 0;
  };

  void write_header();

  AtomicFile file_;
  Metadata metadata_;
  std::vector<std::string> order_;  // as declared
  std::map<std::string, Tensor> tensors_;
  bool header_written_ = false;
};

}  // namespace floe
