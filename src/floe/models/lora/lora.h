// Low-rank adapters on a model's linear layers, and reading PEFT's files of them (save.h writes
// them).
//
// A PEFT folder holds adapter_config.json and adapter_model.safetensors (or .bin), whose names are
// `base_model.model.` + the module's path + `.lora_A.weight`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "floe/io/tensors/tensor_source.h"
#include "floe/models/model_config.h"
#include "floe/nn/layers.h"

namespace floe::models {

// Every nn::Linear that a target matches gets an adapter, except those of the image tower, which
// never trains. Throws ConfigError for a target that matches none. A target without wild cards also
// matches the end of a path ("q_proj", "self_attn.q_proj"), as in PEFT.
void add_lora(nn::Module& model, const LoraConfig& config);

// Under floe's names (`model.layers.0.self_attn.q_proj.lora_A.weight`). Throws ConfigError when
// adapter_config.json has another rank, alpha or kind than the model's adapters, and for settings
// of PEFT that floe does not compute.
std::shared_ptr<const TensorSource> open_peft_weights(const std::string& folder, nn::Module& model);

// Puts every adapter's product into its layer. The parameters must be whole.
void merge_lora(nn::Module& model);

// The layers that have an adapter, by path; its parameters are PATH.lora_A.weight and
// PATH.lora_B.weight.
struct AdaptedLinear {
  std::string path;
  std::int64_t in = 0, out = 0;
  nn::LoraOptions options;
};
std::vector<AdaptedLinear> adapted_linears(nn::Module& model);

}  // namespace floe::models
