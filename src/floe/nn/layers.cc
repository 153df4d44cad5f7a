#include "floe/nn/layers.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>

namespace floe::nn {

Linear::Linear(std::int64_t in, std::int64_t out, bool with_bias)
    : Linear(in, out, with_bias, Init::fan_in(in)) {}

Linear::Linear(std::int64_t in, std::int64_t out, bool with_bias, Init weight_init) {
  weight = parameter("weight", {out, in}, weight_init);
  if (with_bias) bias = parameter("bias", {out}, Init::fan_in(in));
}

at::Tensor Linear::forward(const at::Tensor& x) { return at::linear(x, weight, bias); }

Embedding::Embedding(std::int64_t rows, std::int64_t dim, Init init) {
  weight = parameter("weight", {rows, dim}, init);
}

at::Tensor Embedding::forward(const at::Tensor& ids) { return at::embedding(weight, ids); }

LayerNorm::LayerNorm(std::int64_t dim, double eps) : eps_(eps) {
  weight = parameter("weight", {dim}, Init::ones());
  bias = parameter("bias", {dim}, Init::zeros());
}

at::Tensor LayerNorm::forward(const at::Tensor& x) {
  return at::layer_norm(x, {weight.size(0)}, weight, bias, eps_);
}

at::Tensor Dropout::forward(const at::Tensor& x) { return at::dropout(x, p_, is_training()); }

}  // namespace floe::nn
