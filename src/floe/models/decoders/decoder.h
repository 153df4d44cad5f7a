// A decoder-only language model, built from a DecoderSpec: every family is this one class.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "floe/models/decoders/decoder_spec.h"
#include "floe/models/flamingo/gated_cross_attention.h"
#include "floe/models/language_model.h"
#include "floe/models/vocabulary.h"
#include "floe/nn/fused.h"
#include "floe/nn/layers.h"

namespace floe::models {

// Layer norm or RMS norm, as the spec says.
class Norm : public nn::Module {
 public:
  Norm(NormKind kind, std::int64_t dim, double eps);
  at::Tensor forward(const at::Tensor& x);
  // x + added (undefined: x itself) and its norm, see nn::add_norm.
  std::pair<at::Tensor, at::Tensor> add(const at::Tensor& x, const at::Tensor& added);
  // The same for a result that goes through linear layers with this weight, see nn::add_coded_norm.
  nn::CodedNorm add_for(const at::Tensor& weight, const at::Tensor& x, const at::Tensor& added);

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
  at::Tensor attend(const at::Tensor& x, const BatchContext& context);
  // Where the heads lie in the rows of the fused projection.
  nn::PackedHeads heads_inside(const at::Tensor& projected) const;
  // The fused projection, turned by the rotary positions already; undefined: not done.
  at::Tensor turned(const at::Tensor& projected, const BatchContext& context) const;
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
  BatchContext context(std::shared_ptr<const nn::Segments> segments, const at::Tensor& positions,
                       nn::KvCache* cache, at::ScalarType dtype) const;

  // Called with the index of a layer, and what came out of its gate (undefined: none) and of
  // itself.
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

// A model whose text goes through a decoder: context, logits and loss are the decoder's.
class DecoderModel : public LanguageModel {
 public:
  using LanguageModel::LanguageModel;

  BatchContext context(std::shared_ptr<const nn::Segments> segments, const at::Tensor& positions,
                       nn::KvCache* cache, at::ScalarType dtype) const override;
  at::Tensor logits(const at::Tensor& hidden) override;
  std::pair<at::Tensor, at::Tensor> loss(const at::Tensor& hidden, const at::Tensor& targets,
                                         const at::Tensor& weights, double z_loss) override;
};

// A decoder alone, under the names of its Hugging Face files.
class CausalLm : public Decoder, public DecoderModel {
 public:
  explicit CausalLm(const DecoderSpec& spec);

  nn::Module& module() override { return *this; }
  const Decoder* decoder() const override { return this; }
  // Both bases have these: the model's are what callers mean.
  using DecoderModel::context;
  at::Tensor hidden(const ModelInput& input, const at::Tensor& media, Stages* stages) override;
};

// What is known of a model with this decoder; all of it trains.
ModelInfo decoder_info(const DecoderSpec& spec);

}  // namespace floe::models
