// Reading safetensors: one file, or a Hugging Face folder of them.
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

// Shards and the index that says which tensor lies in which (`model.safetensors.index.json`). Only
// the tensors of the index exist. Shards lie beside the index or below it.
class SafetensorsFolder : public TensorSource {
 public:
  explicit SafetensorsFolder(const std::string& index_path);

  std::vector<std::string> names() const override;
  const TensorInfo* find(const std::string& name) const override;
  void read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
            std::span<std::byte> out) const override;
  std::uint64_t bytes_read() const override;

 private:
  std::map<std::string, std::unique_ptr<SafetensorsFile>> shards_;  // by path
  std::map<std::string, const SafetensorsFile*> owner_;             // by tensor
};

// A safetensors file, an index (*.json), or a folder with model.safetensors or
// model.safetensors.index.json (the single file wins, as in transformers).
std::unique_ptr<TensorSource> open_tensors(const std::string& path);

}  // namespace floe
