#include "floe/models/causal_lm.h"

#include "floe/core/str.h"

namespace floe::models {

at::Tensor CausalLm::hidden(const ModelInput& input, const at::Tensor&, Stages* stages) {
  Watch watch;
  if (stages)
    watch = [stages](std::int64_t i, const at::Tensor&, const at::Tensor& out) {
      (*stages)[str("layer", i, ".decoder_out")] = out;
    };
  return Decoder::hidden(input.ids, {}, input.context, watch);
}

}  // namespace floe::models
