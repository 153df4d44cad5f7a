// Folders of weights as Hugging Face's hub has them: one file, or shards and an index.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "floe/io/tensor_source.h"

namespace floe {

// Which naming of a folder comes first when it holds several, as folders of CLIP models often do: the
// same weights under the names of transformers and under those of open_clip.
enum class FolderNaming { transformers, open_clip };

// The file or index in the folder that holds the weights. In this order, as in the libraries:
//   transformers: model.safetensors, model.safetensors.index.json,
//                 pytorch_model.bin, pytorch_model.bin.index.json
//   open_clip:    open_clip_model.safetensors, open_clip_pytorch_model.bin,
//                 a single other open_clip_*.safetensors
//   OpenFlamingo: checkpoint.pt, its trained part
// Throws DataError, which lists the files of weights that are there, when there is none of these.
std::string find_weights(const std::string& folder,
                         FolderNaming first = FolderNaming::transformers);

// Shards and the index that says which tensor lies in which: {"weight_map": {"name": "file", ...}}.
// Only the tensors of the index exist. Shards lie beside the index or below it.
class IndexedShards : public TensorSource {
 public:
  explicit IndexedShards(const std::string& index_path);

  std::vector<std::string> names() const override { return names_in(owner_); }
  const TensorInfo* find(const std::string& name) const override;
  void read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
            std::span<std::byte> out) const override;
  std::uint64_t bytes_read() const override;

 private:
  std::map<std::string, std::unique_ptr<TensorSource>> shards_;  // by path
  std::map<std::string, const TensorSource*> owner_;             // by tensor
};

}  // namespace floe
