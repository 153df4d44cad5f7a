#include "floe/models/flamingo/gated_cross_attention.h"

#include <ATen/ATen.h>

#include <cmath>

namespace floe::models {

FeedForward::FeedForward(std::int64_t dim, std::int64_t mult) {
  norm_ = child<nn::LayerNorm>("0", dim);
  up_ = child<nn::Linear>("1", dim, mult * dim, false);
  down_ = child<nn::Linear>("3", mult * dim, dim, false);
}

at::Tensor FeedForward::forward(const at::Tensor& x) { return down_(at::gelu(up_(norm_(x)))); }

at::Tensor FeedForward::add_to(const at::Tensor& x, const at::Tensor& gate) {
  return nn::call_through(
      *this,
      [this](const at::Tensor& stream, const at::Tensor& factor) {
        if (!up_->is_bare() || !down_->is_bare() || !norm_->is_bare()) {
          const at::Tensor y = forward(stream);
          return (factor.defined() ? y * factor.tanh() : y) + stream;
        }
        const auto [on, u] = nn::norm_linear(stream, norm_->weights(), up_->weight);
        return nn::add_gated_gelu_linear(on, u, down_->weight, factor);
      },
      x, gate);
}

MaskedCrossAttention::MaskedCrossAttention(std::int64_t dim, std::int64_t media_dim,
                                           const CrossAttentionSpec& spec)
    : heads_(spec.heads), dim_head_(spec.dim_head) {
  const std::int64_t inner = heads_ * dim_head_;
  norm_ = child<nn::LayerNorm>("norm", dim);
  to_q_ = child<nn::Linear>("to_q", dim, inner, false);
  to_kv_ = child<nn::Linear>("to_kv", media_dim, 2 * inner, false);
  to_out_ = child<nn::Linear>("to_out", inner, dim, false);
}

at::Tensor MaskedCrossAttention::forward(const at::Tensor& x, const at::Tensor& media,
                                         const MediaPlan* plan) {
  return to_out_(look(to_q_(norm_(x)), media, *plan));
}

at::Tensor MaskedCrossAttention::add_to(const at::Tensor& x, const at::Tensor& media,
                                        const MediaPlan* plan, const at::Tensor& gate) {
  return nn::call_through(
      *this,
      [this, plan](const at::Tensor& stream, const at::Tensor& seen, const at::Tensor& factor) {
        if (!to_q_->is_bare() || !to_out_->is_bare() || !norm_->is_bare())
          return forward(stream, seen, plan) * factor.tanh() + stream;
        const auto [on, q] = nn::norm_linear(stream, norm_->weights(), to_q_->weight);
        return nn::add_gated_linear(on, look(q, seen, *plan), to_out_->weight, factor);
      },
      x, media, gate);
}

at::Tensor MaskedCrossAttention::keys_and_values(const at::Tensor& media, const MediaPlan& plan) {
  // A unit of its own takes part in every pass (Note [Lockstep]).
  if (!plan.cache() || to_kv_->boundary) return to_kv_(media);
  at::Tensor& kept = plan.cache()->of(this);
  if (!kept.defined()) kept = to_kv_(media);
  return kept;
}

at::Tensor MaskedCrossAttention::look_packed(const at::Tensor& queries, const at::Tensor& media,
                                             const MediaPlan& plan) {
  const MediaPlan::Packed& packed = *plan.packed();
  const auto seen = [&](const at::Tensor& of_all) {
    return packed.images.defined() ? of_all.index_select(0, packed.images) : of_all;
  };
  const std::int64_t latents = media.size(1);
  // Only what is looked at is projected, unless it is kept for later tokens.
  const at::Tensor kv = plan.cache() ? seen(keys_and_values(media, plan)) : to_kv_(seen(media));
  const nn::Spans keys{packed.image_offsets * latents, latents};
  const nn::PackedRule rule{.scale = 1 / std::sqrt(static_cast<double>(dim_head_))};
  at::Tensor mixed = nn::packed_attention(nn::cross_attention_heads(queries, kv, heads_, dim_head_),
                                          packed.tokens, keys, rule);
  if (mixed.defined()) return mixed;
  const auto apart = kv.view({-1, 2, heads_, dim_head_}).unbind(1);
  return nn::packed_attention(queries.view({-1, heads_, dim_head_}), apart[0], apart[1],
                              packed.tokens, keys, rule);
}

at::Tensor MaskedCrossAttention::look(const at::Tensor& queries, const at::Tensor& media,
                                      const MediaPlan& plan) {
  const bool half = queries.scalar_type() == at::kBFloat16 || queries.scalar_type() == at::kHalf;
  if (plan.packed() && half && dim_head_ % 8 == 0 && dim_head_ <= 256)
    return look_packed(queries, media, plan);
  const std::int64_t latents = media.size(1), inner = heads_ * dim_head_;
  at::Tensor q = plan.segments().pad(queries);  // [P, inner]
  const at::Tensor kv = keys_and_values(media, plan);
  std::vector<at::Tensor> mixed;
  for (std::size_t b = 0; b < plan.buckets().size(); ++b) {
    const MediaPlan::Bucket& looks = plan.buckets()[b];
    const nn::Bucket& rows = plan.segments().buckets()[b];
    at::Tensor query = rows.of(q);
    if (looks.even.defined()) query = query.masked_fill(looks.even, 0);
    query = query.view({rows.rows, rows.length, heads_, dim_head_});
    const at::Tensor both = kv.index_select(0, looks.images)
                                .view({rows.rows, looks.slots * latents, 2, heads_, dim_head_});
    at::Tensor mask;
    if (looks.sees.defined()) mask = looks.sees.repeat_interleave(latents, -1);  // [rows, 1, T, K]
    const at::Tensor seen =
        nn::torch_attention(query.transpose(1, 2), both.select(2, 0).transpose(1, 2),
                            both.select(2, 1).transpose(1, 2), mask, {});
    at::Tensor by_place = seen.transpose(1, 2).reshape({rows.rows, rows.length, inner});
    if (looks.blind.defined()) by_place = by_place.masked_fill(looks.blind, 0);
    mixed.push_back(by_place.view({rows.rows * rows.length, inner}));
  }
  if (mixed.empty()) return q;
  return plan.segments().unpad(mixed.size() == 1 ? mixed[0] : at::cat(mixed));
}

GatedCrossAttention::GatedCrossAttention(std::int64_t dim, std::int64_t media_dim,
                                         const CrossAttentionSpec& spec) {
  attn_gate_ = parameter("attn_gate", {1}, nn::Init::zeros());
  ff_gate_ = parameter("ff_gate", {1}, nn::Init::zeros());
  attn_ = child<MaskedCrossAttention>("attn", dim, media_dim, spec);
  ff_ = child<FeedForward>("ff", dim, spec.ff_mult);
}

at::Tensor GatedCrossAttention::forward(const at::Tensor& x, const at::Tensor& media,
                                        const std::shared_ptr<const MediaPlan>& plan) {
  return ff_->add_to(attn_->add_to(x, media, plan.get(), attn_gate_), ff_gate_);
}

}  // namespace floe::models
