// GPT-NeoX (Pythia, RedPajama-INCITE): rotary positions on a part of each head, attention and MLP
// side by side, query, key and value of a head together.
#include "floe/models/decoders/decoder_spec.h"

namespace floe::models {

DecoderSpec gpt_neox_spec(const HfConfig& config) {
  DecoderSpec spec;
  spec.vocab = config.integer("vocab_size");
  spec.dim = config.integer("hidden_size");
  spec.layers = config.integer("num_hidden_layers");
  spec.heads = config.integer("num_attention_heads");
  spec.mlp_dim = config.integer("intermediate_size");
  spec.context = config.integer("max_position_embeddings", 2048);
  spec.norm_eps = config.number("layer_norm_eps", 1e-5);
  spec.parallel_residual = config.flag("use_parallel_residual", true);
  spec.qkv = QkvKind::fused_per_head;
  spec.qkv_bias = spec.attention_out_bias = config.flag("attention_bias", true);
  spec.activation = config.activation("hidden_act", "gelu");
  spec.positions = Positions::rotary;
  const double share = config.section("rope_parameters")
                           .number("partial_rotary_factor", config.number("rotary_pct", 0.25));
  const std::int64_t head_dim = spec.heads > 0 ? spec.dim / spec.heads : 0;
  spec.rotary =
      rotary_from(config, static_cast<std::int64_t>(static_cast<double>(head_dim) * share),
                  config.number("rotary_emb_base", 10000));
  spec.tied = config.flag("tie_word_embeddings", false);
  spec.init_range = config.number("initializer_range", 0.02);
  spec.attention_dropout = config.number("attention_dropout", 0);
  spec.residual_dropout = spec.embedding_dropout = config.number("hidden_dropout", 0);
  spec.names = {
      .embed = "gpt_neox.embed_in",
      .layers = "gpt_neox.layers",
      .final_norm = "gpt_neox.final_layer_norm",
      .head = "embed_out",
      .attention_norm = "input_layernorm",
      .mlp_norm = "post_attention_layernorm",
      .qkv = "attention.query_key_value",
      .attention_out = "attention.dense",
      .up = "mlp.dense_h_to_4h",
      .down = "mlp.dense_4h_to_h",
  };
  spec.ignored = {"*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"};
  return spec;
}

}  // namespace floe::models
