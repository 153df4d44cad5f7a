// OPT: learned positions from index 2 on, ReLU, biases everywhere; OPT-350m has its norms behind
// the blocks and a narrower embedding.
#include "floe/models/decoders/decoder_spec.h"

namespace floe::models {

DecoderSpec opt_spec(const HfConfig& config) {
  config.only(!config.flag("_remove_final_layer_norm", false), "_remove_final_layer_norm", "false");
  DecoderSpec spec;
  spec.vocab = config.integer("vocab_size");
  spec.dim = config.integer("hidden_size");
  spec.layers = config.integer("num_hidden_layers");
  spec.heads = config.integer("num_attention_heads");
  spec.mlp_dim = config.integer("ffn_dim");
  spec.embed_dim = config.integer("word_embed_proj_dim", spec.dim);
  spec.context = config.integer("max_position_embeddings");
  spec.post_norm = !config.flag("do_layer_norm_before", true);
  spec.final_norm = !spec.post_norm;
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = config.flag("enable_bias", true);
  config.only(config.flag("layer_norm_elementwise_affine", true), "layer_norm_elementwise_affine",
              "true");
  spec.activation = config.activation("activation_function", "relu");
  spec.positions = Positions::learned;
  spec.position_offset = 2;
  spec.position_rows = spec.context + spec.position_offset;
  spec.tied = config.flag("tie_word_embeddings", true);
  spec.init_range = config.number("init_std", 0.02);
  spec.attention_dropout = config.number("attention_dropout", 0);
  spec.residual_dropout = config.number("dropout", 0.1);
  spec.names = {
      .embed = "model.decoder.embed_tokens",
      .positions = "model.decoder.embed_positions",
      .layers = "model.decoder.layers",
      .final_norm = "model.decoder.final_layer_norm",
      .head = "lm_head",
      .attention_norm = "self_attn_layer_norm",
      .mlp_norm = "final_layer_norm",
      .q = "self_attn.q_proj",
      .k = "self_attn.k_proj",
      .v = "self_attn.v_proj",
      .attention_out = "self_attn.out_proj",
      .up = "fc1",
      .down = "fc2",
      .project_in = "model.decoder.project_in",
      .project_out = "model.decoder.project_out",
  };
  return spec;
}

}  // namespace floe::models
