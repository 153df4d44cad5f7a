// Qwen2: LLaMA with biases on queries, keys and values only.
#include "floe/models/decoders/decoder_spec.h"

namespace floe::models {

DecoderSpec qwen2_spec(const HfConfig& config) {
  config.only(!config.flag("use_sliding_window", false), "use_sliding_window", "false");
  DecoderSpec spec = llama_spec(config);
  spec.qkv_bias = true;
  spec.attention_out_bias = spec.mlp_bias = false;
  return spec;
}

}  // namespace floe::models
