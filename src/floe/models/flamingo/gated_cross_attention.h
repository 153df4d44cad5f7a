// The layer that lets text look at images: cross-attention and an MLP, each behind a gate that
// begins closed. It stands in front of a decoder layer.
#pragma once

#include "floe/models/flamingo/media_plan.h"
#include "floe/nn/layers.h"

namespace floe::models {

struct CrossAttentionSpec {
  std::int64_t dim_head = 64, heads = 8, ff_mult = 4;
};

// Linear, GELU, linear behind a norm, named 0, 1 and 3 as in OpenFlamingo's sequences.
class FeedForward : public nn::Module {
 public:
  FeedForward(std::int64_t dim, std::int64_t mult);
  at::Tensor forward(const at::Tensor& x);
  // forward(x) · tanh(gate) + x, with an open gate where it is undefined.
  at::Tensor add_to(const at::Tensor& x, const at::Tensor& gate);

 private:
  nn::Ptr<nn::LayerNorm> norm_;
  nn::Ptr<nn::Linear> up_, down_;
};

class MaskedCrossAttention : public nn::Module {
 public:
  MaskedCrossAttention(std::int64_t dim, std::int64_t media_dim, const CrossAttentionSpec& spec);
  // x [N, dim], media [M, latents, media_dim] → [N, dim]
  at::Tensor forward(const at::Tensor& x, const at::Tensor& media, const MediaPlan* plan);
  // forward(x, media, plan) · tanh(gate) + x
  at::Tensor add_to(const at::Tensor& x, const at::Tensor& media, const MediaPlan* plan,
                    const at::Tensor& gate);

 private:
  // Of the encoded images, kept where the plan has a cache: [M, latents, 2 * inner].
  at::Tensor keys_and_values(const at::Tensor& media, const MediaPlan& plan);
  // What tokens with these queries [N, inner] see, before the output's projection: [N, inner].
  at::Tensor look(const at::Tensor& queries, const at::Tensor& media, const MediaPlan& plan);
  at::Tensor look_packed(const at::Tensor& queries, const at::Tensor& media, const MediaPlan& plan);

  std::int64_t heads_, dim_head_;
  nn::Ptr<nn::LayerNorm> norm_;
  nn::Ptr<nn::Linear> to_q_, to_kv_, to_out_;
};

class GatedCrossAttention : public nn::Module {
 public:
  GatedCrossAttention(std::int64_t dim, std::int64_t media_dim, const CrossAttentionSpec& spec);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& media,
                     const std::shared_ptr<const MediaPlan>& plan);
  // The attention alone, without gate and residual.
  at::Tensor attend(const at::Tensor& x, const at::Tensor& media, const MediaPlan& plan) {
    return attn_(x, media, &plan);
  }

 private:
  at::Tensor attn_gate_, ff_gate_;  // [1]
  nn::Ptr<MaskedCrossAttention> attn_;
  nn::Ptr<FeedForward> ff_;
};

}  // namespace floe::models
