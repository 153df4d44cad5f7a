#include "floe/models/decoders/decoder_spec.h"

#include <ATen/ATen.h>

#include "floe/nn/fused.h"

namespace floe::models {

at::Tensor activate(const at::Tensor& x, Activation kind) {
  switch (kind) {
    case Activation::relu: return at::relu(x);
    case Activation::gelu: return nn::gelu(x);
    case Activation::gelu_tanh: return at::gelu(x, "tanh");
    case Activation::quick_gelu: return nn::quick_gelu(x);
    case Activation::silu: return at::silu(x);
  }
  return x;
}

}  // namespace floe::models
