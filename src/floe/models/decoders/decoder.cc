#include "floe/models/decoders/decoder.h"

#include <ATen/ATen.h>

#include <cmath>

#include "floe/batch/packed_batch.h"
#include "floe/core/error.h"
#include "floe/nn/activations/kept_products.h"
#include "floe/nn/products/linear.h"

namespace floe::models {

Norm::Norm(NormKind kind, std::int64_t dim, double eps) : kind_(kind), eps_(eps) {
  weight_ = parameter("weight", {dim}, nn::Init::ones());
  if (kind == NormKind::layer) bias_ = parameter("bias", {dim}, nn::Init::zeros());
}

at::Tensor Norm::forward(const at::Tensor& x) {
  if (kind_ == NormKind::rms) return at::rms_norm(x, {weight_.size(0)}, weight_, eps_);
  return at::layer_norm(x, {weight_.size(0)}, weight_, bias_, eps_);
}

std::pair<at::Tensor, at::Tensor> Norm::add(const at::Tensor& x, const at::Tensor& added) {
  if (!boundary && !checkpointed)
    return nn::add_norm(x, added, {weight_, bias_, eps_, kind_ != NormKind::rms});
  const at::Tensor y = added.defined() ? x + added : x;
  return {y, nn::call(*this, y)};
}

nn::CodedNorm Norm::add_for(const at::Tensor& weight, const at::Tensor& x,
                            const at::Tensor& added) {
  if (!boundary && !checkpointed && nn::codes_of(weight))
    return nn::add_coded_norm(x, added, {weight_, bias_, eps_, kind_ != NormKind::rms});
  auto [stream, normed] = add(x, added);
  return {std::move(stream), std::move(normed), {}, {}};
}

DecoderLayer::DecoderLayer(const DecoderSpec& spec, std::int64_t index)
    : spec_(spec), index_(static_cast<std::size_t>(index)) {
  const DecoderNames& names = spec.names;
  const std::int64_t queries = spec.heads * spec.head_dim, keys = spec.kv_heads * spec.head_dim;
  const auto init = nn::Init::normal(spec.init_range);
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out, bool bias) {
    return child_at<nn::Linear>(name, in, out, bias, init);
  };
  const auto norm = [&](const std::string& name, std::int64_t dim) {
    return child_at<Norm>(name, spec.norm, dim, spec.norm_eps);
  };
  attention_norm_ = norm(names.attention_norm, spec.dim);
  if (spec.qkv == QkvKind::separate) {
    q_ = linear(names.q, spec.dim, queries, spec.qkv_bias);
    k_ = linear(names.k, spec.dim, keys, spec.qkv_bias);
    v_ = linear(names.v, spec.dim, keys, spec.qkv_bias);
  } else {
    qkv_ = linear(names.qkv, spec.dim, queries + 2 * keys, spec.qkv_bias);
  }
  if (spec.qk_norm) {
    q_norm_ = norm(names.q_norm, queries);
    k_norm_ = norm(names.k_norm, keys);
  }
  out_ = linear(names.attention_out, queries, spec.dim, spec.attention_out_bias);
  mlp_norm_ = norm(names.mlp_norm, spec.dim);
  if (spec.gated_mlp) gate_ = linear(names.gate, spec.dim, spec.mlp_dim, spec.mlp_bias);
  up_ = linear(names.up, spec.dim, spec.mlp_dim, spec.mlp_bias);
  down_ = linear(names.down, spec.mlp_dim, spec.dim, spec.mlp_bias);
}

at::Tensor DecoderLayer::drop(const at::Tensor& x) {
  return spec_.residual_dropout > 0 ? at::dropout(x, spec_.residual_dropout, is_training()) : x;
}

at::Tensor DecoderLayer::attend(const at::Tensor& x, const BatchContext& context) {
  const std::int64_t tokens = x.size(0), heads = spec_.heads, shared = spec_.kv_heads;
  const std::int64_t dim = spec_.head_dim;
  nn::AttentionRule rule = context.rule;
  if (!is_training()) rule.dropout = 0;
  at::Tensor q, k, v;  // [N, heads * dim], [N, shared * dim] twice; per head for fused_per_head
  bool rotates = context.rotary.cos.defined();
  if (qkv_) {
    at::Tensor all = qkv_(x);
    if (spec_.clip_qkv > 0) all = all.clamp(-spec_.clip_qkv, spec_.clip_qkv);
    if (const at::Tensor done = turned(all, context); done.defined()) {
      all = done;
      rotates = false;
    }
    if (!rotates && !q_norm_ && !context.cache) {
      const at::Tensor mixed = nn::attention(heads_inside(all), *context.segments, rule);
      if (mixed.defined()) return out_(mixed);
    }
    if (spec_.qkv == QkvKind::fused_per_head) {
      const auto parts = all.view({tokens, heads, 3 * dim}).chunk(3, -1);
      q = parts[0], k = parts[1], v = parts[2];
    } else {
      const auto parts = all.split_with_sizes({heads * dim, shared * dim, shared * dim}, -1);
      q = parts[0], k = parts[1], v = parts[2];
    }
  } else {
    const nn::SharedRows once(x);
    const auto parts = nn::project(x, {q_, k_, v_});
    q = parts[0], k = parts[1], v = parts[2];
  }
  if (q_norm_) q = q_norm_(q), k = k_norm_(k);
  q = q.reshape({tokens, heads, dim});
  k = k.reshape({tokens, shared, dim});
  v = v.reshape({tokens, shared, dim});
  if (rotates) {
    q = nn::rotate(q, context.rotary);
    k = nn::rotate(k, context.rotary);
  }
  const at::Tensor mixed =
      context.cache ? nn::attention(q, k, v, *context.segments, *context.cache, index_, rule)
                    : nn::attention(q, k, v, *context.segments, context.masks, rule);
  return out_(mixed);
}

at::Tensor DecoderLayer::turned(const at::Tensor& projected, const BatchContext& context) const {
  if (!context.rotary.cos.defined() || q_norm_) return {};
  const nn::PackedHeads heads = heads_inside(projected);
  return nn::rotate_inside(projected, context.rotary, heads.q_heads, heads.k_heads);
}

nn::PackedHeads DecoderLayer::heads_inside(const at::Tensor& projected) const {
  const std::int64_t dim = spec_.head_dim, heads = spec_.heads, shared = spec_.kv_heads;
  const bool per_head = spec_.qkv == QkvKind::fused_per_head;
  const std::int64_t stride = per_head ? 3 * dim : dim;
  return {.q = projected,
          .q_heads = {0, heads, stride},
          .k_heads = {per_head ? dim : heads * dim, shared, stride},
          .v_heads = {per_head ? 2 * dim : (heads + shared) * dim, shared, stride},
          .dim = dim};
}

at::Tensor DecoderLayer::transform(const at::Tensor& x) {
  const nn::SharedRows once(x);
  if (!gate_ && spec_.activation == Activation::gelu) return nn::gelu_mlp(x, up_, down_);
  if (!gate_) return down_(activate(up_(x), spec_.activation));
  const auto parts = nn::project(x, {gate_, up_});
  if (spec_.activation == Activation::silu) return nn::gated_silu_linear(parts[0], parts[1], down_);
  return down_(activate(parts[0], spec_.activation) * parts[1]);
}

at::Tensor DecoderLayer::forward(const at::Tensor& x, const ContextPtr& context) {
  if (spec_.post_norm) {
    const at::Tensor y = attention_norm_(x + drop(attend(x, *context)));
    return mlp_norm_(y + drop(transform(y)));
  }
  const auto attend_to = [&](const nn::CodedNorm& norm) {
    const nn::SharedRows once(norm.normed, norm.codes, norm.code_scales);
    return std::pair(norm.stream, attend(norm.normed, *context));
  };
  // What is normalised does not outlive the attention.
  const auto [stream, attended] =
      attend_to(attention_norm_->add_for((qkv_ ? qkv_ : q_)->weight, x, {}));
  if (spec_.parallel_residual) {
    const at::Tensor beside = drop(nn::leaves(*this, attended));
    return stream + beside + drop(nn::leaves(*this, transform(mlp_norm_(stream))));
  }
  const nn::CodedNorm second = mlp_norm_->add_for(up_->weight, stream, drop(attended));
  const nn::SharedRows of_second(second.normed, second.codes, second.code_scales);
  return second.stream + drop(nn::leaves(*this, transform(second.normed)));
}

Decoder::Decoder(const DecoderSpec& spec, const std::optional<Gates>& gates,
                 const std::vector<std::int64_t>& trained_rows)
    : spec_(spec) {
  const DecoderNames& names = spec.names;
  const auto init = nn::Init::normal(spec.init_range);
  for (const std::int64_t row : trained_rows)
    require<ConfigError>(row >= 0 && row < spec.vocab, "token ", row,
                         " lies outside of the vocabulary of ", spec.vocab,
                         "; give the id that the tokenizer has for it");
  embed_ = child_at<TokenEmbedding>(names.embed, spec.vocab, spec.embed_dim, spec.init_range,
                                    trained_rows);
  if (spec.positions == Positions::learned)
    positions_ = child_at<nn::Embedding>(names.positions, spec.position_rows, spec.dim, init);
  if (spec.positions == Positions::alibi)
    slopes_ = nn::alibi_slopes(spec.heads, spec.alibi_bias_max);
  if (spec.embed_dim != spec.dim) {
    project_in_ = child_at<nn::Linear>(names.project_in, spec.embed_dim, spec.dim, false, init);
    project_out_ = child_at<nn::Linear>(names.project_out, spec.dim, spec.embed_dim, false, init);
  }
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    const std::string path = names.layers + "." + std::to_string(i);
    // As OpenFlamingo has them: with gates, layer i is a pair of gate (or none) and decoder layer.
    auto& gate = gates_.emplace_back();
    if (gates && (i + 1) % gates->every == 0)
      gate = child_at<GatedCrossAttention>(path + ".gated_cross_attn_layer", spec.dim,
                                           gates->media_dim, gates->spec);
    layers_.push_back(child_at<DecoderLayer>(gates ? path + ".decoder_layer" : path, spec, i));
  }
  if (spec.final_norm)
    final_norm_ = child_at<Norm>(names.final_norm, spec.norm, spec.dim, spec.norm_eps);
  head_ = child_at<OutputHead>(names.head, spec.vocab, spec.embed_dim, spec.init_range,
                               spec.logit_scale);
  if (spec.tied) head_->tie(*embed_);
}

BatchContext Decoder::context(std::shared_ptr<const nn::Segments> segments,
                              const at::Tensor& positions, nn::KvCache* cache,
                              at::ScalarType dtype) const {
  BatchContext context;
  context.rule.scale = spec_.attention_scale > 0
                           ? spec_.attention_scale
                           : 1 / std::sqrt(static_cast<double>(spec_.head_dim));
  context.rule.window = spec_.window;
  context.rule.dropout = spec_.attention_dropout;
  if (slopes_.defined()) context.rule.slopes = to_device(slopes_, positions.device());
  context.positions = positions;
  context.cache = cache;
  const auto options = at::TensorOptions().dtype(dtype).device(positions.device());
  if (!cache && !nn::attention_packs(*segments, context.rule, options, spec_.head_dim))
    context.masks = nn::attention_masks(*segments, context.rule, options);
  if (spec_.positions == Positions::rotary && spec_.rotary.dim > 0)
    context.rotary = nn::rotary_angles(spec_.rotary, positions, dtype);
  context.segments = std::move(segments);
  return context;
}

at::Tensor Decoder::hidden(const at::Tensor& ids, const at::Tensor& media,
                           const ContextPtr& context, const Watch& watch) {
  at::Tensor x = embed_(ids);
  if (project_in_) x = project_in_(x);
  if (positions_) x = x + positions_(context->positions + spec_.position_offset);
  if (spec_.embedding_dropout > 0) x = at::dropout(x, spec_.embedding_dropout, is_training());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    at::Tensor gated;
    if (gates_[i]) x = gated = gates_[i](x, media, context->media);
    x = layers_[i](x, context);
    if (watch) watch(static_cast<std::int64_t>(i), gated, x);
  }
  if (final_norm_) x = final_norm_(x);
  return project_out_ ? project_out_(x) : x;
}

BatchContext DecoderModel::context(std::shared_ptr<const nn::Segments> segments,
                                   const at::Tensor& positions, nn::KvCache* cache,
                                   at::ScalarType dtype) const {
  return decoder()->context(std::move(segments), positions, cache, dtype);
}

at::Tensor DecoderModel::logits(const at::Tensor& hidden) {
  return decoder()->head()->logits(hidden);
}

std::pair<at::Tensor, at::Tensor> DecoderModel::loss(const at::Tensor& hidden,
                                                     const at::Tensor& targets,
                                                     const at::Tensor& weights, double z_loss) {
  return decoder()->head()->loss(hidden, targets, weights, z_loss);
}

CausalLm::CausalLm(const DecoderSpec& spec)
    : Decoder(spec, std::nullopt, {}), DecoderModel(decoder_info(spec)) {}

at::Tensor CausalLm::hidden(const ModelInput& input, const at::Tensor&, Stages* stages) {
  Watch watch;
  if (stages)
    watch = [stages](std::int64_t i, const at::Tensor&, const at::Tensor& out) {
      (*stages)[str("layer", i, ".decoder_out")] = out;
    };
  return Decoder::hidden(input.ids, {}, input.context, watch);
}

ModelInfo decoder_info(const DecoderSpec& spec) {
  ModelInfo info{.kind = "causal_lm",
                 .family = spec.family,
                 .vocab = spec.vocab,
                 .dim = spec.dim,
                 .layers = spec.layers};
  if (spec.positions == Positions::learned) {
    info.position_rows = spec.position_rows;
    info.position_offset = spec.position_offset;
  }
  info.trained_by_default = {"*"};
  info.tied = spec.tied;
  info.init_range = spec.init_range;
  info.parts = {.embed = spec.names.embed,
                .layers = spec.names.layers,
                .head = spec.names.head,
                .tables = {spec.names.positions},
                .before = {spec.names.project_in}};
  info.ignored = spec.ignored;
  return info;
}

}  // namespace floe::models
