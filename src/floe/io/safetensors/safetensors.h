// One safetensors file. (open_tensors.h: any file or folder of weights.)
//
// The format: 8 bytes little-endian header length, a JSON header
// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {...}}, then
// the data. Everything the header says is checked when the file is opened: types, sizes, and that
// the tensors cover the data exactly, without overlap or hole. Any defect is one DataError that
// names the file, the tensor, what was expected and what was found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/io/file/file.h"
#include "floe/io/tensors/tensor_source.h"

namespace floe {

using Metadata = std::map<std::string, std::string>;

// What a header says; split from the file so that it can be tested on bytes alone.
struct SafetensorsHeader {
  std::map<std::string, TensorInfo> tensors;
  Metadata metadata;
};

// `json` is the header text, `data_offset` where the data begins in a file of `file_size` bytes.
SafetensorsHeader parse_safetensors_header(const std::string& json, const std::string& file,
                                           std::int64_t data_offset, std::int64_t file_size);

class SafetensorsFile : public TensorSource {
 public:
  explicit SafetensorsFile(const std::string& path);

  std::vector<std::string> names() const override;
  const TensorInfo* find(const std::string& name) const override;
  // The header's "__metadata__"; empty when there is none.
  const Metadata& metadata() const { return header_.metadata; }

 private:
  SafetensorsHeader header_;
};

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
//
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
