// What `floe export` was asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/io/tensor_source.h"

namespace floe::cli {

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

}  // namespace floe::cli
