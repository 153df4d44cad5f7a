// Opening weights of any kind that floe reads; docs/files.md lists them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "floe/io/tensors/tensor_source.h"

namespace floe::pickle {
class Value;
}

namespace floe {

// ---- folders of weights as Hugging Face's hub has them: one file, or shards and an index ----

// Which naming of a folder comes first when it holds several, as folders of CLIP models often do:
// the same weights under the names of transformers and under those of open_clip.
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

// A file (safetensors; or of torch.save or torch.jit.save, told by its content), an index of shards
// (*.json), a directory of torch.distributed.checkpoint (dcp.h), or a Hugging Face folder
// (find_weights). Throws DataError for anything else.
std::unique_ptr<TensorSource> open_tensors(const std::string& path);

// ---- training states: a model's weights beside other things, such as an optimizer's state ----

// The keys under which a training state keeps its parts ("model", "optimizer"), as far as they hold
// tensors. Empty for bare weights, and for sources that do not tell (safetensors).
std::vector<std::string> parts_of(const TensorSource& source);

// What stands in front of the weights' names: "model_state_dict.", "state_dict.", "model."; empty
// for bare weights.
//
// A name alone does not tell `model.layers.0` of a state dict from `layers.0` in the part `model`.
// A directory of torch.distributed.checkpoint and a file of torch.save know the difference; for
// others the part `model` is taken for one when an optimizer's state lies beside it.
std::string weights_prefix(const TensorSource& source);

// How a source names the weights of a model, also where it keeps an optimizer's state by names.
class WeightNaming {
 public:
  explicit WeightNaming(const TensorSource& source);

  const std::string& prefix() const { return prefix_; }  // weights_prefix

  // A name behind the prefix as the model has it: without what data parallelism, FSDP, activation
  // checkpointing and compilation put into it (`module.`, `_orig_mod.`), and without the attribute
  // `model` in which a LightningModule keeps its network.
  std::string plain(std::string name) const;

 private:
  std::string prefix_, network_;
};

// The names of the weights as the model has them, with those in the source. Throws DataError, with
// the path in it, when two of the source would have the same.
Renames weight_names(const TensorSource& source, const WeightNaming& naming,
                     const std::string& path);

// What a training state says beside its tensors: the value under a key of the file of torch.save,
// or of the file meta.pt that trainers put into a directory; null when there is none.
pickle::Value state_value(const TensorSource& source, const std::string& key);

// The tensors below `prefix` that are there and cannot be read, in words: "2 tensors cannot be
// read, such as "w", which …". Empty when all can, and for sources that do not tell.
std::string unreadable_in_words(const TensorSource& source, const std::string& prefix = "");

// True for what a Trainer of Lightning saved.
bool is_of_lightning(const TensorSource& source);

}  // namespace floe
