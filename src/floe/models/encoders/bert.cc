// BERT: every token sees the whole text, norms stand behind the blocks, and the model learns to
// fill in masked tokens (BertForMaskedLM). Token types are always 0.
#include <ATen/ATen.h>

#include <cmath>

#include "floe/core/error.h"
#include "floe/models/registry.h"
#include "floe/models/vocabulary.h"
#include "floe/nn/layers.h"

namespace floe::models {
namespace {

struct BertSpec {
  std::int64_t vocab, dim, layers, heads, mlp_dim, positions, token_types;
  Activation activation;
  double norm_eps, init_range, hidden_dropout, attention_dropout;

  std::int64_t head_dim() const { return dim / heads; }
};

BertSpec bert_spec(const HfConfig& config) {
  for (const char* key : {"is_decoder", "add_cross_attention"})
    config.only(!config.flag(key, false), key, "false");
  config.only(config.flag("tie_word_embeddings", true), "tie_word_embeddings", "true");
  config.only(config.text("position_embedding_type", "absolute") == "absolute",
              "position_embedding_type", "\"absolute\"");
  BertSpec spec{.vocab = config.integer("vocab_size", 30522),
                .dim = config.integer("hidden_size", 768),
                .layers = config.integer("num_hidden_layers", 12),
                .heads = config.integer("num_attention_heads", 12),
                .mlp_dim = config.integer("intermediate_size", 3072),
                .positions = config.integer("max_position_embeddings", 512),
                .token_types = config.integer("type_vocab_size", 2),
                .activation = config.activation("hidden_act", "gelu"),
                .norm_eps = config.number("layer_norm_eps", 1e-12),
                .init_range = config.number("initializer_range", 0.02),
                .hidden_dropout = config.number("hidden_dropout_prob", 0.1),
                .attention_dropout = config.number("attention_probs_dropout_prob", 0.1)};
  constexpr std::int64_t kMost = 1 << 24;  // products of two stay far from overflow
  for (const std::int64_t size : {spec.vocab, spec.dim, spec.layers, spec.heads, spec.mlp_dim,
                                  spec.positions, spec.token_types})
    require<ConfigError>(size >= 1 && size <= kMost, config.file(), ": a model with a size of ",
                         size, " cannot be built; floe allows 1 to ", kMost);
  require<ConfigError>(spec.dim % spec.heads == 0, config.file(), ": a width of ", spec.dim,
                       " cannot be split into ", spec.heads, " heads");
  return spec;
}

class BertLayer : public nn::Module {
 public:
  explicit BertLayer(const BertSpec& spec) : spec_(spec) {
    const auto linear = [&](const char* name, std::int64_t in, std::int64_t out) {
      return child_at<nn::Linear>(name, in, out, true, nn::Init::normal(spec.init_range));
    };
    query_ = linear("attention.self.query", spec.dim, spec.dim);
    key_ = linear("attention.self.key", spec.dim, spec.dim);
    value_ = linear("attention.self.value", spec.dim, spec.dim);
    attention_out_ = linear("attention.output.dense", spec.dim, spec.dim);
    attention_norm_ =
        child_at<nn::LayerNorm>("attention.output.LayerNorm", spec.dim, spec.norm_eps);
    up_ = linear("intermediate.dense", spec.dim, spec.mlp_dim);
    down_ = linear("output.dense", spec.mlp_dim, spec.dim);
    norm_ = child_at<nn::LayerNorm>("output.LayerNorm", spec.dim, spec.norm_eps);
  }
  bool is_unit_by_default() const override { return true; }

  at::Tensor forward(const at::Tensor& x, const ContextPtr& context) {  // [N, dim] → [N, dim]
    const at::Tensor y = attention_norm_(drop(attention_out_(attend(x, *context))) + x);
    return norm_(drop(down_(activate(up_(y), spec_.activation))) + y);
  }

 private:
  at::Tensor attend(const at::Tensor& x, const BatchContext& context) {
    const auto by_head = [&](const at::Tensor& projected) {
      return projected.view({-1, spec_.heads, spec_.head_dim()});
    };
    nn::AttentionRule rule = context.rule;
    if (!is_training()) rule.dropout = 0;
    return nn::attention(by_head(query_(x)), by_head(key_(x)), by_head(value_(x)),
                         *context.segments, context.masks, rule);
  }
  at::Tensor drop(const at::Tensor& x) {
    return spec_.hidden_dropout > 0 ? at::dropout(x, spec_.hidden_dropout, is_training()) : x;
  }

  BertSpec spec_;
  nn::Ptr<nn::Linear> query_, key_, value_, attention_out_, up_, down_;
  nn::Ptr<nn::LayerNorm> attention_norm_, norm_;
};

// From hidden states to logits: a layer of its own, then the embedding's table and a bias.
class MaskedLmHead : public nn::Module {
 public:
  MaskedLmHead(const BertSpec& spec, const TokenEmbedding& words) : activation_(spec.activation) {
    const at::Tensor bias = parameter("bias", {spec.vocab}, nn::Init::zeros());
    dense_ = child_at<nn::Linear>("transform.dense", spec.dim, spec.dim, true,
                                  nn::Init::normal(spec.init_range));
    norm_ = child_at<nn::LayerNorm>("transform.LayerNorm", spec.dim, spec.norm_eps);
    decoder_ = child<OutputHead>("decoder", spec.vocab, spec.dim, spec.init_range);
    decoder_->tie(words);
    decoder_->tie_bias(bias);
  }

  at::Tensor logits(const at::Tensor& hidden) {
    return nn::call_through(
        *this, [this](const at::Tensor& h) { return decoder_->logits(transform(h)); }, hidden);
  }
  std::pair<at::Tensor, at::Tensor> loss(const at::Tensor& hidden, const at::Tensor& targets,
                                         const at::Tensor& weights, double z_loss) {
    return nn::call_through(
        *this,
        [this, targets, weights, z_loss](const at::Tensor& h) {
          return decoder_->loss(transform(h), targets, weights, z_loss);
        },
        hidden);
  }

 private:
  at::Tensor transform(const at::Tensor& x) { return norm_(activate(dense_(x), activation_)); }

  Activation activation_;
  nn::Ptr<nn::Linear> dense_;
  nn::Ptr<nn::LayerNorm> norm_;
  nn::Ptr<OutputHead> decoder_;
};

ModelInfo bert_info(const BertSpec& spec) {
  ModelInfo info{.kind = "masked_lm",
                 .family = "bert",
                 .vocab = spec.vocab,
                 .dim = spec.dim,
                 .layers = spec.layers,
                 .position_rows = spec.positions};
  info.causal = false;
  info.labels = LabelRule::same_token;
  info.trained_by_default = {"*"};
  info.tied = true;
  info.init_range = spec.init_range;
  info.parts = {
      .embed = "bert.embeddings.word_embeddings",
      .layers = "bert.encoder.layer",
      .head = "cls.predictions",
      .tables = {"bert.embeddings.position_embeddings", "bert.embeddings.token_type_embeddings"},
      .before = {"bert.embeddings.LayerNorm"}};
  // Buffers, and what BertForPreTraining has beside the head of masked tokens.
  info.ignored = {"*.position_ids", "bert.pooler.*", "cls.seq_relationship.*"};
  info.older_endings = {{".LayerNorm.weight", ".LayerNorm.gamma"},
                        {".LayerNorm.bias", ".LayerNorm.beta"}};
  return info;
}

class Bert : public nn::Module, public LanguageModel {
 public:
  explicit Bert(const BertSpec& spec) : LanguageModel(bert_info(spec)), spec_(spec) {
    const auto init = nn::Init::normal(spec.init_range);
    const std::string embeddings = "bert.embeddings.";
    words_ = child_at<TokenEmbedding>(info().parts.embed, spec.vocab, spec.dim, spec.init_range);
    positions_ =
        child_at<nn::Embedding>(embeddings + "position_embeddings", spec.positions, spec.dim, init);
    types_ = child_at<nn::Embedding>(embeddings + "token_type_embeddings", spec.token_types,
                                     spec.dim, init);
    norm_ = child_at<nn::LayerNorm>(embeddings + "LayerNorm", spec.dim, spec.norm_eps);
    layers_ = child_at<nn::List<BertLayer>>(info().parts.layers);
    for (std::int64_t i = 0; i < spec.layers; ++i) layers_->add(spec);
    head_ = child_at<MaskedLmHead>(info().parts.head, spec, *words_);
  }

  nn::Module& module() override { return *this; }

  BatchContext context(std::shared_ptr<const nn::Segments> segments, const at::Tensor& positions,
                       nn::KvCache* cache, at::ScalarType dtype) const override {
    require(!cache, "a BERT has no cache: it does not continue text");
    BatchContext context;
    context.rule.causal = false;
    context.rule.scale = 1 / std::sqrt(static_cast<double>(spec_.head_dim()));
    context.rule.dropout = spec_.attention_dropout;
    context.positions = positions;
    const auto options = at::TensorOptions().dtype(dtype).device(positions.device());
    if (!nn::attention_packs(*segments, context.rule, options, spec_.head_dim()))
      context.masks = nn::attention_masks(*segments, context.rule, options);
    context.segments = std::move(segments);
    return context;
  }

  at::Tensor hidden(const ModelInput& input, const at::Tensor&, Stages* stages) override {
    at::Tensor x = words_(input.ids) + types_(at::zeros_like(input.ids));
    x = norm_(x + positions_(input.context->positions));
    if (spec_.hidden_dropout > 0) x = at::dropout(x, spec_.hidden_dropout, is_training());
    for (std::size_t i = 0; i < layers_->size(); ++i) {
      x = (*layers_)[i](x, input.context);
      if (stages) (*stages)[str("layer", i, ".encoder_out")] = x;
    }
    return x;
  }
  at::Tensor logits(const at::Tensor& hidden) override { return head_->logits(hidden); }
  std::pair<at::Tensor, at::Tensor> loss(const at::Tensor& hidden, const at::Tensor& targets,
                                         const at::Tensor& weights, double z_loss) override {
    return head_->loss(hidden, targets, weights, z_loss);
  }

 private:
  BertSpec spec_;
  nn::Ptr<TokenEmbedding> words_;
  nn::Ptr<nn::Embedding> positions_, types_;
  nn::Ptr<nn::LayerNorm> norm_;
  nn::Ptr<nn::List<BertLayer>> layers_;
  nn::Ptr<MaskedLmHead> head_;
};

}  // namespace

ModelFamily bert_family() {
  return {.model_type = "bert",
          .architectures = {"BertForMaskedLM", "BertForPreTraining"},
          .auto_class = "AutoModelForMaskedLM",
          .build =
              [](const HfConfig& config, bool dropout) {
                BertSpec spec = bert_spec(config);
                if (!dropout) spec.hidden_dropout = spec.attention_dropout = 0;
                return std::make_shared<Bert>(spec);
              },
          .decoder = nullptr};
}

}  // namespace floe::models
