// The Perceiver resampler: any number of image tokens to a fixed number of latents, image by image.
#pragma once

#include "floe/models/flamingo/gated_cross_attention.h"
#include "floe/nn/layers.h"

namespace floe::models {

struct PerceiverSpec {
  std::int64_t depth = 6, dim_head = 64, heads = 8, num_latents = 64, ff_mult = 4;
};

class PerceiverAttention : public nn::Module {
 public:
  PerceiverAttention(std::int64_t dim, const PerceiverSpec& spec);
  // media [M, tokens, dim], latents [M, num_latents, dim] → [M, num_latents, dim]
  at::Tensor forward(const at::Tensor& media, const at::Tensor& latents);

 private:
  // Of the media, which it norms, and then of the normed latents: [M, tokens + num_latents, 2 *
  // inner]
  at::Tensor keys_and_values(const at::Tensor& media, const at::Tensor& latents);
  // Queries [M, num_latents, inner] at those → [M * num_latents, inner], where they lie in their
  // projections; undefined where no kernel takes them there, see Note [Packed attention].
  at::Tensor look_packed(const at::Tensor& q, const at::Tensor& kv) const;

  std::int64_t heads_, dim_head_;
  nn::Ptr<nn::LayerNorm> norm_media_, norm_latents_;
  nn::Ptr<nn::Linear> to_q_, to_kv_, to_out_;
};

class PerceiverResampler : public nn::Module {
 public:
  PerceiverResampler(std::int64_t dim, const PerceiverSpec& spec);
  at::Tensor forward(const at::Tensor& media);  // [M, tokens, dim] → [M, num_latents, dim]

 private:
  at::Tensor latents_;
  std::vector<nn::Ptr<PerceiverAttention>> attention_;
  std::vector<nn::Ptr<FeedForward>> feed_forward_;
  nn::Ptr<nn::LayerNorm> norm_;
};

}  // namespace floe::models
