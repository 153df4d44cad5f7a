#include "floe/nn/layers.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>

#include <cmath>

#include "floe/nn/products/adapted.h"
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
  if (lora_)
    if (const auto adapted = as_adapted(x)) return adapted_linears(x, {*adapted})[0];
  at::Tensor y = nn::linear(x, weight, bias);
  if (!lora_) return y;
  return y + lora_b_(lora_a_(at::dropout(x, lora_->dropout, is_training()))) * lora_->scale();
}

std::optional<AdaptedWeight> Linear::as_adapted(const at::Tensor& x) const {
  const auto differs = [&](const at::Tensor& tensor) {
    return tensor.scalar_type() != x.scalar_type() || tensor.device() != x.device();
  };
  const auto device = x.is_cpu() ? at::kCPU : at::kCUDA;
  if (at::autocast::is_autocast_enabled(device) || weight.requires_grad() ||
      (!codes_of(weight) && differs(weight)) || (bias.defined() && differs(bias)))
    return std::nullopt;
  if (!lora_) return AdaptedWeight{weight, bias};
  for (const Ptr<Linear>& part : {lora_a_, lora_b_})
    if (!part->is_bare() || differs(part->weight)) return std::nullopt;
  if (lora_->dropout > 0 && is_training()) return std::nullopt;
  return AdaptedWeight{weight, bias, lora_a_->weight, lora_b_->weight, lora_->scale()};
}

std::vector<at::Tensor> project(const at::Tensor& x, const std::vector<Ptr<Linear>>& layers) {
  std::vector<AdaptedWeight> weights;
  bool has_adapter = false;
  for (const Ptr<Linear>& layer : layers) {
    auto adapted = layer->boundary || layer->checkpointed ? std::nullopt : layer->as_adapted(x);
    if (!adapted) break;
    has_adapter = has_adapter || adapted->a.defined();
    weights.push_back(std::move(*adapted));
  }
  if (has_adapter && weights.size() == layers.size()) return adapted_linears(x, weights);
  std::vector<at::Tensor> results;
  results.reserve(layers.size());
  for (const Ptr<Linear>& layer : layers) results.push_back(layer(x));
  return results;
}

at::Tensor gelu_mlp(const at::Tensor& x, const Ptr<Linear>& up, const Ptr<Linear>& down) {
  const auto is_coded = [](const Linear& layer) {
    return codes_of(layer.weight) && !layer.lora() && !layer.boundary && !layer.checkpointed &&
           !(layer.bias.defined() && layer.bias.requires_grad());
  };
  if (is_coded(*up) && is_coded(*down))
    return coded_gelu_mlp(x, up->weight, up->bias, down->weight, down->bias);
  return down(nn::gelu(up(x)));
}

at::Tensor gated_silu_linear(const at::Tensor& gate, const at::Tensor& up,
                             const Ptr<Linear>& layer) {
  if (layer->lora() && !layer->boundary && !layer->checkpointed)
    if (const auto adapted = layer->as_adapted(gate))
      return adapted_gated_silu_linear(gate, up, *adapted);
  return layer(gated_silu(gate, up));
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

at::Tensor LayerNorm::forward(const at::Tensor& x) { return add_norm(x, {}, weights()).second; }

at::Tensor Dropout::forward(const at::Tensor& x) { return at::dropout(x, p_, is_training()); }

}  // namespace floe::nn
