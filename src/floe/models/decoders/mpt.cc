// MPT: alibi, no biases, tied embeddings. MPT-1B came before the name: its files say "mosaic_gpt",
// its queries and keys are normalised, and its parameters have names of their own.
#include "floe/models/decoders/decoder_spec.h"

namespace floe::models {
namespace {

DecoderSpec common(const HfConfig& config, std::int64_t mlp_ratio, bool biases) {
  DecoderSpec spec;
  spec.vocab = config.integer("vocab_size");
  spec.dim = config.integer("d_model");
  spec.layers = config.integer("n_layers");
  spec.heads = config.integer("n_heads");
  spec.mlp_dim = mlp_ratio * spec.dim;
  spec.context = config.integer("max_seq_len", 2048);
  spec.norm = biases ? NormKind::layer : NormKind::layer_without_bias;
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = biases;
  spec.qkv = QkvKind::fused;
  spec.activation = Activation::gelu;
  spec.tied = config.flag("tie_word_embeddings", true);
  spec.init_range = config.number("initializer_range", 0.02);
  spec.residual_dropout = config.number("resid_pdrop", config.number("resid_prob_drop", 0));
  spec.embedding_dropout = config.number("emb_pdrop", config.number("emb_prob_drop", 0));
  config.only(!config.has("logit_scale"), "logit_scale", "null");
  return spec;
}

void take_positions(DecoderSpec& spec, const HfConfig& attention, const std::string& key) {
  if (attention.flag(key, true)) {
    spec.positions = Positions::alibi;
    spec.alibi_bias_max = attention.number("alibi_bias_max", 8);
  } else {
    spec.positions = Positions::learned;
    spec.position_rows = spec.context;
    spec.names.positions = "transformer.wpe";
  }
}

// Transformers ignores these too, but not the code that MPT was published with.
void refuse_other_layers(const HfConfig& config, const HfConfig& attention) {
  const std::string norm = config.text("norm_type", "low_precision_layernorm");
  config.only(norm == "layernorm" || norm == "low_precision_layernorm", "norm_type",
              "\"layernorm\" or \"low_precision_layernorm\"");
  const HfConfig activation = config.section("ffn_config").section("ffn_act_fn");
  activation.only(activation.text("name", "gelu") == "gelu", "name", "\"gelu\"");
  activation.only(activation.text("approximate", "none") == "none", "approximate", "\"none\"");
  attention.only(attention.number("sliding_window_size", -1) == -1, "sliding_window_size", "-1");
  attention.only(!attention.has("attn_logit_softcapping"), "attn_logit_softcapping", "null");
  config.only(!config.has("final_logit_softcapping"), "final_logit_softcapping", "null");
}

}  // namespace

DecoderSpec mpt_spec(const HfConfig& config) {
  DecoderSpec spec = common(config, config.integer("expansion_ratio", 4), false);
  const HfConfig attention = config.section("attn_config");
  attention.only(attention.text("attn_type", "multihead_attention") == "multihead_attention",
                 "attn_type", "\"multihead_attention\"");
  attention.only(!attention.flag("prefix_lm", false), "prefix_lm", "false");
  refuse_other_layers(config, attention);
  spec.norm_eps = config.number("layer_norm_epsilon", 1e-5);
  spec.attention_dropout = attention.number("attn_pdrop", 0);
  spec.attention_scale = attention.number("softmax_scale", 0);
  spec.clip_qkv = attention.number("clip_qkv", 0);
  spec.qk_norm = attention.flag("qk_ln", false);
  spec.names = {
      .embed = "transformer.wte",
      .layers = "transformer.blocks",
      .final_norm = "transformer.norm_f",
      .head = "lm_head",
      .attention_norm = "norm_1",
      .mlp_norm = "norm_2",
      .qkv = "attn.Wqkv",
      .attention_out = "attn.out_proj",
      .q_norm = "attn.q_ln",
      .k_norm = "attn.k_ln",
      .up = "ffn.up_proj",
      .down = "ffn.down_proj",
  };
  take_positions(spec, attention, "alibi");
  return spec;
}

DecoderSpec mosaic_gpt_spec(const HfConfig& config) {
  DecoderSpec spec = common(config, config.integer("mlp_ratio", 4), !config.flag("no_bias", true));
  config.only(config.number("embedding_fraction", 1) == 1, "embedding_fraction", "1");
  config.only(!config.flag("prefix_lm", false), "prefix_lm", "false");
  spec.attention_dropout = config.number("attn_pdrop", 0);
  spec.attention_scale = config.number("softmax_scale", 0);
  spec.clip_qkv = config.number("attn_clip_qkv", 0);
  spec.qk_norm = config.flag("attn_qk_ln", false);
  spec.names = {
      .embed = "transformer.wte",
      .layers = "transformer.blocks",
      .final_norm = "transformer.ln_f",
      .head = "lm_head",
      .attention_norm = "ln_1",
      .mlp_norm = "ln_2",
      .qkv = "attn.Wqkv",
      .attention_out = "attn.out_proj",
      .q_norm = "attn.q_ln",
      .k_norm = "attn.k_ln",
      .up = "mlp.mlp_up",
      .down = "mlp.mlp_down",
  };
  take_positions(spec, config, "alibi");
  return spec;
}

}  // namespace floe::models
