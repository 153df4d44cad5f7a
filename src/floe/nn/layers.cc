#include "floe/nn/layers.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>

#include <cmath>

#include "floe/nn/products/linear.h"

namespace floe::nn {

double LoraOptions::scale() const {
  return alpha /
         (rank_stabilised ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
}

Linear::Linear(std::int64_t in, std::int64_t out, bool with_bias)
    : Linear(in, out, with_bias, Init::fan_in(in)) {}

Linear::Linear(std::int64_t in, std::int64_t out, bool with_bias, Init weight_init) {
  weight = parameter("weight", {out, in}, weight_init);
  if (with_bias) bias = parameter("bias", {out}, Init::fan_in(in));
}

at::Tensor Linear::forward(const at::Tensor& x) {
  at::Tensor y = nn::linear(x, weight, bias);
  if (!lora_) return y;
  return y + lora_b_(lora_a_(at::dropout(x, lora_->dropout, is_training()))) * lora_->scale();
}

void Linear::adapt(const LoraOptions& options) {
  lora_ = options;
  lora_a_ = child<Linear>("lora_A", weight.size(1), options.rank, false);
  lora_b_ = child<Linear>("lora_B", options.rank, weight.size(0), false, Init::zeros());
}

void Linear::merge_lora() {
  if (!lora_) return;
  const at::AutoGradMode grad_off(false);
  const at::Tensor product = lora_b_->weight.to(at::kFloat).mm(lora_a_->weight.to(at::kFloat));
  weight.copy_(weight.to(at::kFloat) + product * lora_->scale());
  lora_b_->weight.zero_();
}

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
