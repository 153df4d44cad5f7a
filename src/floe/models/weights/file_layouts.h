// What the files of other systems hold of a model: names, shapes and where the numbers come from.
// Order is that of registration. The input embedding is always one table, with its trained rows in
// their places (Note [Trained rows]).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/models/language_model.h"
#include "floe/models/vision/vision_files.h"
#include "floe/nn/module.h"

namespace floe::models {

// Which part of a model a parameter or module belongs to, by its name.
inline constexpr std::string_view kLanguagePart = "lang_encoder.";  // of a Flamingo
inline constexpr std::string_view kVisionPart = "vision_encoder.";

inline bool is_vision(std::string_view name) { return name.starts_with(kVisionPart); }
// What a Flamingo adds to its language model and image tower.
inline bool is_flamingo_own(std::string_view name) {
  return name.starts_with("perceiver.") ||
         name.find(".gated_cross_attn_layer.") != std::string_view::npos;
}
inline bool is_adapter(std::string_view name) {
  return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
}
// Trained rows of an embedding (Note [Trained rows]).
inline bool is_rows(std::string_view name) { return name.ends_with(".rows"); }

inline void erase_all(std::string& name, std::string_view part) {
  for (auto at = name.find(part); at != std::string::npos; at = name.find(part, at))
    name.erase(at, part.size());
}

// As the language model's own files have it:
// "lang_encoder.model.layers.3.decoder_layer.mlp.up_proj" → "model.layers.3.mlp.up_proj".
inline std::string hf_name(std::string name) {
  if (name.starts_with(kLanguagePart)) name.erase(0, kLanguagePart.size());
  erase_all(name, ".decoder_layer");
  return name;
}

// How the tensors of a file are made from a model's parameters: the other way of AssembledSource.

// Elements [first, first + count) of a parameter, row-major.
struct SavedRun {
  std::string parameter;
  std::int64_t first = 0, count = 0;
};

// A low-rank product that is added to a weight as it is written.
struct SavedAdapter {
  std::string a, b;  // [rank, in] and [out, rank]
  std::int64_t rank = 0;
  double scale = 1;
};

struct SavedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<SavedRun> runs;           // one after the other
  bool transposed = false;              // the parameter is a matrix that lies the other way round
  std::optional<SavedAdapter> adapter;  // only with a single run
  // Further names of the same tensor: those that every file has (a tied head), and those that are
  // only written where they cost no bytes.
  std::vector<std::string> copies, second_names;

  std::int64_t numel() const;
  // All that it is made of, once each.
  std::vector<std::string> parameters() const;
};

// Gives a parameter by its name, whole, on any device. Collective where it is (under an engine it
// is Engine::full_parameter): all ranks then save the same tensors in the same order.
using WholeParameter = std::function<at::Tensor(const std::string& name)>;

// Of a model in one piece.
WholeParameter whole_parameters(nn::Module& model);

// Gives tensors in pieces. Between calls it keeps the parameters of the last tensor, which the next
// one may share; beyond these it needs a bounded buffer.
//
// When `whole` is empty the parameters come from `source`, which must have them all, in pieces as
// well: then the buffer is all the memory there is (and adapters, and tensors that are transposed).
class SavedTensorReader {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;

  explicit SavedTensorReader(WholeParameter whole, const TensorSource* source = nullptr)
      : whole_(std::move(whole)), source_(source) {}
  // Collective where `whole` is. An empty sink takes part and drops the bytes.
  void read(const SavedTensor& tensor, DType dtype, const Sink& sink);

 private:
  void hold(const SavedTensor& tensor);
  at::Tensor elements(const std::string& parameter, std::int64_t first, std::int64_t count) const;
  void give_adapted(const SavedTensor& tensor, DType dtype, const Sink& sink) const;

  WholeParameter whole_;
  const TensorSource* source_;
  std::map<std::string, at::Tensor> held_;  // flattened
};

// The language model alone, under Hugging Face's names, without what Flamingo put into it. Adapters
// are added to their weights. A tied head is left out, as transformers leaves it out.
std::vector<SavedTensor> language_model_layout(LanguageModel& model);

// What OpenFlamingo keeps in a checkpoint: parameters that train, the input embedding, and
// everything with "embed" in its name; of the image tower only what trains. A tied head is written
// under its own name as well. Adapters are tensors of their own. `trains` says which parameters do;
// null: those that require a gradient now.
std::vector<SavedTensor> trained_part_layout(
    LanguageModel& model, const std::function<bool(const nn::NamedParameter&)>& trains = nullptr);

// A whole state dict of OpenFlamingo. Its modules `old_decoder_blocks` and
// `gated_cross_attn_layers` are second names. Adapters are added to their weights.
std::vector<SavedTensor> flamingo_layout(LanguageModel& model);

// The image tower: `visual.…` of open_clip, or CLIPVisionModel of Hugging Face (with
// `visual_projection.weight` if the tower projects).
std::vector<SavedTensor> vision_layout(LanguageModel& model, VisionNames names);

}  // namespace floe::models
