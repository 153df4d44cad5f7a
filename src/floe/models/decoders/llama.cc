// LLaMA: rotary positions, RMS norms, gated SiLU, keys and values shared by groups of heads.
#include "floe/models/decoders/decoder_spec.h"

namespace floe::models {

DecoderSpec llama_spec(const HfConfig& config) {
  DecoderSpec spec;
  spec.vocab = config.integer("vocab_size");
  spec.dim = config.integer("hidden_size");
  spec.layers = config.integer("num_hidden_layers");
  spec.heads = config.integer("num_attention_heads");
  spec.kv_heads = config.integer("num_key_value_heads", spec.heads);
  spec.head_dim = config.integer("head_dim", spec.heads > 0 ? spec.dim / spec.heads : 0);
  spec.mlp_dim = config.integer("intermediate_size");
  spec.context = config.integer("max_position_embeddings", 2048);
  spec.norm = NormKind::rms;
  spec.norm_eps = config.number("rms_norm_eps", 1e-6);
  spec.qkv_bias = spec.attention_out_bias = config.flag("attention_bias", false);
  spec.mlp_bias = config.flag("mlp_bias", false);
  spec.activation = config.activation("hidden_act", "silu");
  spec.gated_mlp = true;
  spec.positions = Positions::rotary;
  spec.rotary = rotary_from(config, spec.head_dim, 10000);
  spec.tied = config.flag("tie_word_embeddings", false);
  spec.init_range = config.number("initializer_range", 0.02);
  spec.attention_dropout = config.number("attention_dropout", 0);
  spec.names = {
      .embed = "model.embed_tokens",
      .layers = "model.layers",
      .final_norm = "model.norm",
      .head = "lm_head",
      .attention_norm = "input_layernorm",
      .mlp_norm = "post_attention_layernorm",
      .q = "self_attn.q_proj",
      .k = "self_attn.k_proj",
      .v = "self_attn.v_proj",
      .attention_out = "self_attn.o_proj",
      .gate = "mlp.gate_proj",
      .up = "mlp.up_proj",
      .down = "mlp.down_proj",
  };
  spec.ignored = {"*.rotary_emb.inv_freq"};
  return spec;
}

}  // namespace floe::models
