// A decoder-only language model, built from a DecoderSpec: every family is this one class.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "floe/models/decoders/decoder_spec.h"
#include "floe/models/flamingo/gated_cross_attention.h"
#include "floe/nn/attention.h"
#include "floe/nn/cross_entropy.h"
#include "floe/nn/layers.h"

namespace floe::models {

// The embedding of tokens and the output head, with rows of their own for the tokens that train.
//
// Note [Trained rows]
// OpenFlamingo trains the embeddings of `<image>` and `<|endofchunk|>` only: the whole table requires
// a gradient, and all but two rows of it are set to zero. Here the table is frozen storage and the
// rows are a parameter `rows` beside it, so that gradient, optimizer state and traffic exist for the
// rows alone. The table's own values for these tokens are never used. A tied head uses the same rows.
// Files in other layouts have one table; models/weights.h goes between the two.

class TokenEmbedding : public nn::Module {
 public:
  TokenEmbedding(std::int64_t vocab, std::int64_t dim, double deviation,
                 const std::vector<std::int64_t>& trained_rows);
  at::Tensor forward(const at::Tensor& ids);  // [N] → [N, dim]
  bool weights_in_backward() const override { return false; }

  const std::vector<std::int64_t>& trained_rows() const { return trained_rows_; }
  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& rows() const { return rows_; }

 private:
  std::vector<std::int64_t> trained_rows_;
  at::Tensor weight_;  // [vocab, dim]
  at::Tensor rows_;    // [R, dim] or undefined
};

class OutputHead : public nn::Module {
 public:
  OutputHead(std::int64_t vocab, std::int64_t dim, double deviation, double scale);
  // The embedding's table and rows are this head's, under both names.
  void tie(const TokenEmbedding& embedding);
  bool weights_in_backward() const override { return false; }  // see Note [Loss without logits]

  // [L, dim] → [L, vocab]
  at::Tensor logits(const at::Tensor& hidden);
  // See nn::cross_entropy.
  std::pair<at::Tensor, at::Tensor> loss(const at::Tensor& hidden, const at::Tensor& targets,
                                         const at::Tensor& weights, double z_loss);

 private:
  nn::OutputWeights output(const at::Tensor& like);

  double scale_;
  std::vector<std::int64_t> trained_rows_;
  at::Tensor weight_, rows_;
  at::Tensor
      row_ids_;  // `trained_rows_` where the model computes: made once, a step reads no host memory
};

// What all layers need of a batch beside the hidden states. Shared: recomputed layers read it again.
struct DecoderContext {
  std::shared_ptr<const nn::Segments> segments;
  at::Tensor positions;  // [N], of each token in its sequence
  nn::AttentionRule rule;
  std::vector<at::Tensor> masks;  // of each bucket
  nn::RotaryAngles rotary;
  nn::KvCache* cache = nullptr;            // generation only
  std::shared_ptr<const MediaPlan> media;  // with gates only
};
using ContextPtr = std::shared_ptr<const DecoderContext>;

// Layer norm or RMS norm, as the spec says.
class Norm : public nn::Module {
 public:
  Norm(NormKind kind, std::int64_t dim, double eps);
  at::Tensor forward(const at::Tensor& x);
  // x + added (undefined: x itself) and its norm, see nn::add_norm.
  std::pair<at::Tensor, at::Tensor> add(const at::Tensor& x, const at::Tensor& added);

 private:
  NormKind kind_;
  double eps_;
  at::Tensor weight_, bias_;
};

class DecoderLayer : public nn::Module {
 public:
  DecoderLayer(const DecoderSpec& spec, std::int64_t index);
  at::Tensor forward(const at::Tensor& x, const ContextPtr& context);  // [N, dim] → [N, dim]

 private:
  at::Tensor attend(const at::Tensor& x, const DecoderContext& context);
  // Where the heads lie in the rows of the fused projection.
  nn::PackedHeads heads_inside(const at::Tensor& projected) const;
  // The fused projection, turned by the rotary positions already; undefined: not done.
  at::Tensor turned(const at::Tensor& projected, const DecoderContext& context) const;
  at::Tensor transform(const at::Tensor& x);
  at::Tensor drop(const at::Tensor& x);

  DecoderSpec spec_;
  std::size_t index_;
  nn::Ptr<Norm> attention_norm_, mlp_norm_, q_norm_, k_norm_;
  nn::Ptr<nn::Linear> q_, k_, v_, qkv_, out_, gate_, up_, down_;
};

// Gated cross-attention in front of every n-th layer.
struct Gates {
  std::int64_t every = 1, media_dim = 0;
  CrossAttentionSpec spec;
};

class Decoder : public nn::Module {
 public:
  // `trained_rows`: tokens whose embedding trains while the rest of the table is frozen.
  Decoder(const DecoderSpec& spec, const std::optional<Gates>& gates,
          const std::vector<std::int64_t>& trained_rows);

  const DecoderSpec& spec() const { return spec_; }
  DecoderContext context(std::shared_ptr<const nn::Segments> segments, const at::Tensor& positions,
                         nn::KvCache* cache, at::ScalarType dtype) const;

  // Called with the index of a layer, and what came out of its gate (undefined: none) and of itself.
  using Watch = std::function<void(std::int64_t, const at::Tensor&, const at::Tensor&)>;
  // ids [N] → hidden states before the head [N, embed_dim]. `media` only with gates.
  at::Tensor hidden(const at::Tensor& ids, const at::Tensor& media, const ContextPtr& context,
                    const Watch& watch = {});
  const nn::Ptr<OutputHead>& head() const { return head_; }
  const nn::Ptr<TokenEmbedding>& embedding() const { return embed_; }
  // Null for a layer without one.
  GatedCrossAttention* gate(std::int64_t layer) const {
    return gates_[static_cast<std::size_t>(layer)] ? &*gates_[static_cast<std::size_t>(layer)]
                                                   : nullptr;
  }

 private:
  DecoderSpec spec_;
  nn::Ptr<TokenEmbedding> embed_;
  nn::Ptr<nn::Embedding> positions_;
  nn::Ptr<nn::Linear> project_in_, project_out_;
  std::vector<nn::Ptr<GatedCrossAttention>> gates_;
  std::vector<nn::Ptr<DecoderLayer>> layers_;
  nn::Ptr<Norm> final_norm_;
  nn::Ptr<OutputHead> head_;
  at::Tensor slopes_;  // alibi
};

}  // namespace floe::models
