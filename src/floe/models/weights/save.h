// Saving a model in the layouts that other systems load; docs/weights.md lists them.
//
//   SaveOptions options{.source = built.source.get(), .write = world.rank() == 0};
//   save_language_model(*built.model, config.lm, "out", whole, options);
//
// Parameters come one at a time through `whole`, so host memory stays near the largest of them. An
// empty `whole` takes them from options.source, in pieces of bounded size. Collective where `whole`
// is: all ranks call with the same arguments except `write`, which is true on one of them. An error
// of writing is thrown when the last parameter has come, so that no rank leaves the others waiting;
// the others do not learn of it here.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/models/model_config.h"
#include "floe/models/weights/file_layouts.h"

namespace floe::models {

struct SaveOptions {
  // Of floating-point tensors; null: as `source`, from which the model was read, has each of them,
  // and fp32 for those that it does not have.
  std::optional<DType> dtype;
  const TensorSource* source = nullptr;
  // A file of a Hugging Face folder is not larger, unless a single tensor is.
  std::int64_t max_shard_bytes = 5'000'000'000;
  bool write = true;
};

// The type that a tensor gets in the file.
DType saved_dtype(const SavedTensor& tensor, const SaveOptions& options);

// What comes first on the rank that writes: making folders, writing configurations.
using Preparation = std::function<void()>;

// Each fetches every parameter, on all ranks in the same order, and writes where options.write is
// set. Errors of `prepare` and of writing are thrown at the end.

// One file: of safetensors where `path` ends so, of torch.save with a bare state dict where it ends
// with .pt or .pth. Throws ConfigError for other endings.
void write_file(const std::vector<SavedTensor>& tensors, const std::string& path,
                const WholeParameter& whole, const SaveOptions& options);
// model.safetensors, or model-00001-of-0000N.safetensors and the index, which is written last.
void write_shards(const std::vector<SavedTensor>& tensors, const std::string& folder,
                  const WholeParameter& whole, const SaveOptions& options,
                  const Preparation& prepare = {});

// A Hugging Face folder: model.safetensors or shards and their index; config.json of `lm_folder`
// with the vocabulary and type that were written; its tokenizer and generation settings, if it has
// them. The folder must not hold weights yet.
void save_language_model(LanguageModel& model, const std::string& lm_folder,
                         const std::string& folder, const WholeParameter& whole,
                         const SaveOptions& options);

// Everything beside weights and config.json that belongs to a Hugging Face folder: tokenizer,
// generation settings, and code that config.json names (as text: floe never runs it).
void copy_companions(const std::string& from, const std::string& to);

// config.json of a folder with a Flamingo's weights (exported_flamingo.h). `with_adapters`: they
// are tensors of their own in there.
void save_flamingo_config(LanguageModel& model, const ModelConfig& config, bool with_adapters,
                          const std::string& folder, const SaveOptions& options);

// One file (see write_file) in OpenFlamingo's names: the trained part, or everything.
void save_trained_part(LanguageModel& model, const std::string& path, const WholeParameter& whole,
                       const SaveOptions& options);
void save_flamingo(LanguageModel& model, const std::string& path, const WholeParameter& whole,
                   const SaveOptions& options);

// A folder of the image tower: open_clip_config.json and open_clip_model.safetensors, or
// config.json and model.safetensors of a CLIPVisionModel. The folder must not hold weights yet.
void save_vision(LanguageModel& model, VisionNames names, const std::string& folder,
                 const WholeParameter& whole, const SaveOptions& options);

// A PEFT folder of the language model's adapters, in fp32 unless options.dtype says otherwise.
// `base_model`: what PEFT is to load below them. Throws ConfigError for adapters outside of the
// language model: PEFT has no place for these.
void save_peft(LanguageModel& model, const LoraConfig& config, const std::string& base_model,
               const std::string& folder, const WholeParameter& whole, const SaveOptions& options);

}  // namespace floe::models
