// The nonlinearities of decoders and image towers.
#pragma once

#include <ATen/core/Tensor.h>

namespace floe::models {

enum class Activation { relu, gelu, gelu_tanh, quick_gelu, silu };

at::Tensor activate(const at::Tensor& x, Activation kind);

}  // namespace floe::models
