// What `floe export` writes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "floe/cli/used_model.h"
#include "floe/core/dtype.h"
#include "floe/io/tensors/tensor_source.h"

namespace floe::cli {

// What `floe export` was asked for.
struct ExportRequest {
  std::string source;      // what was named: a run, a checkpoint, an exported folder, a YAML
  std::string checkpoint;  // a file or a directory; empty: the model has no weights but its files'
  std::string out;         // a file (.safetensors, .pt, .pth), else a folder
  std::int64_t max_shard_bytes = 5'000'000'000;
  std::optional<DType> dtype;  // of floating-point tensors; none: as in the checkpoint
  bool ema = false;            // the averages instead of the weights
  bool trainable_only = false;
  bool raw = false;
  bool hub_layout = false;
  bool card = true;     // README.md in a folder
  std::string license;  // for the card; empty: not said
  bool merge_lora = true;
  bool force = false;
  std::string model_yaml;                   // instead of what the checkpoint says; empty: none
  std::string base;                         // a Hugging Face folder for config.json and tokenizer
  std::vector<std::string> strip_prefixes;  // more than those that are known

  bool to_file() const;
};

// What was written, for the user.
struct ExportResult {
  std::string what;  // "the language model in Hugging Face's layout"
  std::int64_t num_tensors = 0, bytes = 0;
};

// The weights in the checkpoint under their own names, or the averages with `ema`. Throws
// CheckpointError when it has no averages.
std::shared_ptr<const TensorSource> exported_weights(const ExportRequest& request);

// --raw: every tensor under its flat name. `place`: the file, or the folder to be filled.
ExportResult export_raw(const ExportRequest& request, const std::string& place);

// The weights of a training state of any origin, without prefixes; into a folder with config.json
// and tokenizer of request.base, if there is one.
ExportResult export_weights(const ExportRequest& request, const std::string& place);

// A model as a whole in the layouts that other systems load: what its checkpoint has, and the rest
// from the files that its configuration names. A language model becomes a Hugging Face folder, its
// adapters merged, or a PEFT folder of the adapters alone; a Flamingo the whole state dict of
// OpenFlamingo, or what OpenFlamingo keeps of it (trainable_only).
ExportResult export_model(const ExportRequest& request, const UsedModel& model,
                          const std::string& place);

}  // namespace floe::cli
