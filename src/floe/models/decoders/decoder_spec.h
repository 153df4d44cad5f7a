// A decoder as data: everything in which the language models differ. One small file per family
// (opt.cc, gpt_neox.cc, ...) fills it from the model's config.json; docs/adding-a-model.md tells
// how to add the next.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "floe/models/hf_config.h"
#include "floe/nn/rotary.h"

namespace floe::models {

enum class NormKind { layer, layer_without_bias, rms };
enum class Positions { none, learned, rotary, alibi };
enum class QkvKind {
  separate,        // three projections
  fused,           // one projection: all queries, then all keys, then all values
  fused_per_head,  // one projection: of each head its query, key and value
};

// Names of modules as Hugging Face files have them, relative to the language model or to a layer.
struct DecoderNames {
  std::string embed, positions, layers, final_norm, head;
  std::string attention_norm, mlp_norm;
  std::string q, k, v, qkv, attention_out, q_norm, k_norm;
  std::string gate, up, down;
  std::string project_in, project_out;
};

struct DecoderSpec {
  std::string family;  // for messages
  std::int64_t vocab = 0, dim = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, mlp_dim = 0;
  std::int64_t embed_dim = 0;  // other than dim: projections in and out
  std::int64_t context = 0;    // longest sequence; 0: no limit known

  NormKind norm = NormKind::layer;
  double norm_eps = 1e-5;
  bool post_norm = false;          // norms behind attention and MLP instead of before
  bool final_norm = true;          // before the head
  bool parallel_residual = false;  // attention and MLP both read the layer's input

  QkvKind qkv = QkvKind::separate;
  bool qkv_bias = true, attention_out_bias = true, mlp_bias = true;
  bool qk_norm = false;  // layer norm of whole queries and keys, before they are split into heads
  double clip_qkv = 0;   // 0: none
  double attention_scale = 0;  // 0: 1 / sqrt(head_dim)
  std::int64_t window = 0;     // sliding window; 0: none

  Activation activation = Activation::gelu;
  bool gated_mlp = false;  // down(act(gate(x)) · up(x))

  Positions positions = Positions::none;
  std::int64_t position_rows = 0, position_offset = 0;  // learned: rows of the table, first index
  nn::RotarySpec rotary;
  double alibi_bias_max = 8;

  bool tied = false;  // the head's weight is the embedding
  double logit_scale = 1;
  double init_range = 0.02;  // standard deviation of what is new
  double attention_dropout = 0, residual_dropout = 0, embedding_dropout = 0;

  DecoderNames names;
  // Tensors that files of this family may hold and that floe does not need (patterns).
  std::vector<std::string> ignored;
};

// "rope_scaling" and "rope_theta" (or "rope_parameters", as newer files have them).
nn::RotarySpec rotary_from(const HfConfig& config, std::int64_t dim, double default_theta);

// The families, one file each; registry.cc says by which "model_type" each is found.
DecoderSpec opt_spec(const HfConfig& config);
DecoderSpec gpt_neox_spec(const HfConfig& config);
DecoderSpec mpt_spec(const HfConfig& config);
DecoderSpec mosaic_gpt_spec(const HfConfig& config);
DecoderSpec llama_spec(const HfConfig& config);
DecoderSpec mistral_spec(const HfConfig& config);
DecoderSpec qwen2_spec(const HfConfig& config);

// With what follows from other fields. Throws ConfigError, naming `file`, for sizes that do not fit
// each other.
DecoderSpec completed(DecoderSpec spec, const std::string& file);
void remove_dropout(DecoderSpec& spec);

}  // namespace floe::models
