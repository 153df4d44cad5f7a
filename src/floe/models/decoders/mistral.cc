// Mistral: LLaMA without biases, and a token sees only a window of the text.
#include "floe/models/decoders/decoder_spec.h"

namespace floe::models {

DecoderSpec mistral_spec(const HfConfig& config) {
  DecoderSpec spec = llama_spec(config);
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = false;
  // A file without the key means 4096; null means no window.
  spec.window = config.integer("sliding_window", config.contains("sliding_window") ? 0 : 4096);
  return spec;
}

}  // namespace floe::models
