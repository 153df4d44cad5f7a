#include "floe/models/transformer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>

#include "floe/core/error.h"
#include "floe/nn/activations/kept_products.h"
#include "floe/nn/attention.h"

namespace floe::models {
namespace plain {

Attention::Attention(const TransformerSize& size) : heads_(size.heads) {
  require<ConfigError>(size.dim % size.heads == 0, "a width of ", size.dim,
                       " cannot be split into ", size.heads, " heads");
  qkv_ = child<nn::Linear>("qkv", size.dim, 3 * size.dim);
  out_ = child<nn::Linear>("out", size.dim, size.dim);
}

at::Tensor Attention::forward(const at::Tensor& x) {
  const auto B = x.size(0), T = x.size(1), D = x.size(2);
  const auto qkv = qkv_(x).view({B, T, 3, heads_, D / heads_}).permute({2, 0, 3, 1, 4});
  const auto mixed =
      nn::torch_attention(qkv[0], qkv[1], qkv[2], {}, {.causal = true});  // [B, H, T, D/H]
  return out_(mixed.transpose(1, 2).reshape({B, T, D}));
}

Adapter::Adapter(std::int64_t dim, std::int64_t width) {
  down_ = child<nn::Linear>("down", dim, width);
  up_ = child<nn::Linear>("up", width, dim, true, nn::Init::zeros());
}

at::Tensor Adapter::forward(const at::Tensor& x) { return x + up_(at::gelu(down_(x))); }

DecoderLayer::DecoderLayer(const TransformerSize& size) {
  norm1_ = child<nn::LayerNorm>("norm1", size.dim);
  attention_ = child<Attention>("attention", size);
  norm2_ = child<nn::LayerNorm>("norm2", size.dim);
  up_ = child<nn::Linear>("up", size.dim, size.mlp_ratio * size.dim);
  down_ = child<nn::Linear>("down", size.mlp_ratio * size.dim, size.dim);
  if (size.adapter > 0) adapter_ = child<Adapter>("adapter", size.dim, size.adapter);
  dropout_ = child<nn::Dropout>("dropout", size.dropout);
}

at::Tensor DecoderLayer::forward(const at::Tensor& x) {
  const auto attended = x + dropout_(attention_(norm1_(x)));
  const auto transformed = down_(at::gelu(up_(norm2_(attended))));
  if (adapter_) return adapter_(attended + dropout_(transformed));
  return attended + dropout_(nn::leaves(*this, transformed));
}

}  // namespace plain

Transformer::Transformer(const TransformerSize& size) : size_(size) {
  embed_ = child<nn::Embedding>("embed", size.vocab, size.dim, nn::Init::normal(0.02));
  positions_ = child<nn::Embedding>("positions", size.context, size.dim, nn::Init::normal(0.02));
  layers_ = child<nn::List<plain::DecoderLayer>>("layers");
  for (std::int64_t i = 0; i < size.layers; ++i) layers_->add(size);
  norm_ = child<nn::LayerNorm>("norm", size.dim);
  head_ = child<nn::Linear>("head", size.dim, size.vocab, false, nn::Init::normal(0.02));
  if (size.tied) head_->tie_weight(embed_->weight);
}

at::Tensor Transformer::forward(const at::Tensor& ids) {
  const auto positions = at::arange(ids.size(1), ids.options());
  at::Tensor x = embed_(ids) + positions_(positions);
  for (const auto& layer : *layers_) x = layer(x);
  return head_(norm_(x));
}

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& ids) {
  const auto T = ids.size(1);
  return at::cross_entropy_loss(
      logits.narrow(1, 0, T - 1).reshape({-1, logits.size(2)}).to(at::kFloat),
      ids.narrow(1, 1, T - 1).reshape({-1}));
}

}  // namespace floe::models
