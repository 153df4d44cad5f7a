#include "floe/models/flamingo/perceiver.h"

#include <ATen/ATen.h>

#include <cmath>

#include "floe/kernels/rehearsal.h"
#include "floe/nn/attention.h"

namespace floe::models {

PerceiverAttention::PerceiverAttention(std::int64_t dim, const PerceiverSpec& spec)
    : heads_(spec.heads), dim_head_(spec.dim_head) {
  const std::int64_t inner = heads_ * dim_head_;
  norm_media_ = child<nn::LayerNorm>("norm_media", dim);
  norm_latents_ = child<nn::LayerNorm>("norm_latents", dim);
  to_q_ = child<nn::Linear>("to_q", dim, inner, false);
  to_kv_ = child<nn::Linear>("to_kv", dim, 2 * inner, false);
  to_out_ = child<nn::Linear>("to_out", inner, dim, false);
}

at::Tensor PerceiverAttention::keys_and_values(const at::Tensor& media, const at::Tensor& latents) {
  if (kernels::acts_as_cpu(media) || !to_kv_->is_bare() || !norm_media_->is_bare())
    return to_kv_(at::cat({norm_media_(media), latents}, 1));
  // The normed media need not be kept, nor be copied beside the latents before they are projected.
  const at::Tensor of_media = nn::norm_linear(media, norm_media_->weights(), to_kv_->weight).second;
  return at::cat({of_media, to_kv_(latents)}, 1);
}

at::Tensor PerceiverAttention::look_packed(const at::Tensor& q, const at::Tensor& kv) const {
  const nn::PackedRule rule{.scale = 1 / std::sqrt(static_cast<double>(dim_head_))};
  const std::int64_t images = q.size(0);
  if (images == 0 || !nn::packs(q.options(), dim_head_, rule)) return {};
  const auto spans_of = [&](const at::Tensor& rows) -> nn::Spans {
    const std::int64_t each = rows.size(1);
    return {at::arange(0, (images + 1) * each, each, rows.options().dtype(at::kInt)), each};
  };
  return nn::packed_attention(nn::cross_attention_heads(q, kv, heads_, dim_head_), spans_of(q),
                              spans_of(kv), rule);
}

at::Tensor PerceiverAttention::forward(const at::Tensor& media, const at::Tensor& latents) {
  const at::Tensor own = norm_latents_(latents);
  const std::int64_t images = own.size(0), inner = heads_ * dim_head_;
  const at::Tensor q = to_q_(own), kv = keys_and_values(media, own);
  if (const at::Tensor mixed = look_packed(q, kv); mixed.defined())
    return to_out_(mixed.view({images, -1, inner}));
  const auto apart = kv.view({images, -1, 2, heads_, dim_head_}).unbind(2);
  const at::Tensor mixed =
      nn::torch_attention(q.view({images, -1, heads_, dim_head_}).transpose(1, 2),
                          apart[0].transpose(1, 2), apart[1].transpose(1, 2), {}, {});
  return to_out_(mixed.transpose(1, 2).reshape({images, -1, inner}));
}

PerceiverResampler::PerceiverResampler(std::int64_t dim, const PerceiverSpec& spec) {
  latents_ = parameter("latents", {spec.num_latents, dim}, nn::Init::normal(1));
  for (std::int64_t i = 0; i < spec.depth; ++i) {
    const std::string path = "layers." + std::to_string(i);
    attention_.push_back(child_at<PerceiverAttention>(path + ".0", dim, spec));
    feed_forward_.push_back(child_at<FeedForward>(path + ".1", dim, spec.ff_mult));
  }
  norm_ = child<nn::LayerNorm>("norm", dim);
}

at::Tensor PerceiverResampler::forward(const at::Tensor& media) {
  at::Tensor x = latents_.unsqueeze(0).expand({media.size(0), -1, -1});
  for (std::size_t i = 0; i < attention_.size(); ++i) {
    x = attention_[i](media, x) + x;
    x = feed_forward_[i]->add_to(x, {});
  }
  return norm_(x);
}

}  // namespace floe::models
