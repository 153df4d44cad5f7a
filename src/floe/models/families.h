// The families of decoders, one function each; decoder_spec() picks by "model_type".
#pragma once

#include "floe/models/decoder_spec.h"
#include "floe/models/hf_config.h"

namespace floe::models {

DecoderSpec opt_spec(const HfConfig& config);
DecoderSpec gpt_neox_spec(const HfConfig& config);
DecoderSpec mpt_spec(const HfConfig& config);
DecoderSpec mosaic_gpt_spec(const HfConfig& config);
DecoderSpec llama_spec(const HfConfig& config);
DecoderSpec mistral_spec(const HfConfig& config);
DecoderSpec qwen2_spec(const HfConfig& config);

}  // namespace floe::models
