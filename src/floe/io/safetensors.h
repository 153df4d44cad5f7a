// Reading one safetensors file. (open_tensors.h: any file or folder of weights.)
//
// The format: 8 bytes little-endian header length, a JSON header
// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {...}}, then
// the data. Everything the header says is checked when the file is opened: types, sizes, and that
// the tensors cover the data exactly, without overlap or hole. Any defect is one DataError that
// names the file, the tensor, what was expected and what was found.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "floe/io/tensor_source.h"

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

}  // namespace floe
