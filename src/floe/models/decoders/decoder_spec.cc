#include "floe/models/decoders/decoder_spec.h"

#include "floe/core/error.h"

namespace floe::models {

nn::RotarySpec rotary_from(const HfConfig& config, std::int64_t dim, double default_theta) {
  const HfConfig newer = config.section("rope_parameters");
  nn::RotarySpec spec{.dim = dim};
  spec.theta = newer.number("rope_theta", config.number("rope_theta", default_theta));
  const std::string table = config.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const HfConfig scaling = config.section(table);
  config.only(scaling.has("rope_type") || scaling.has("type") || !scaling.has("factor"), table,
              "a table that has \"rope_type\"");
  const std::string kind = scaling.text("rope_type", scaling.text("type", "default"));
  scaling.only(kind == "default" || kind == "linear" || kind == "llama3", "rope_type",
               "default, linear or llama3");
  if (kind == "default") return spec;
  scaling.only(scaling.has("factor"), "factor", "a number");
  nn::RotaryScaling stretched{.factor = scaling.number("factor", 1)};
  if (kind == "llama3") {
    stretched.kind = nn::RotaryScaling::Kind::llama3;
    stretched.low_freq_factor = scaling.number("low_freq_factor", 1);
    stretched.high_freq_factor = scaling.number("high_freq_factor", 4);
    stretched.original_context = scaling.number("original_max_position_embeddings", 8192);
  }
  spec.scaling = stretched;
  return spec;
}

DecoderSpec completed(DecoderSpec spec, const std::string& file) {
  if (spec.kv_heads == 0) spec.kv_heads = spec.heads;
  if (spec.heads > 0 && spec.head_dim == 0) {
    require<ConfigError>(spec.dim % spec.heads == 0, file, ": a width of ", spec.dim,
                         " cannot be split into ", spec.heads, " heads");
    spec.head_dim = spec.dim / spec.heads;
  }
  if (spec.embed_dim == 0) spec.embed_dim = spec.dim;
  require<ConfigError>(spec.heads > 0 && spec.kv_heads > 0 && spec.heads % spec.kv_heads == 0, file,
                       ": ", spec.heads, " heads cannot share ", spec.kv_heads, " key-value heads");
  require<ConfigError>(spec.vocab > 0 && spec.dim > 0 && spec.layers > 0, file,
                       ": vocabulary, width and number of layers must be at least 1");
  constexpr std::int64_t kMost = 1 << 24;  // products of two stay far from overflow
  for (const std::int64_t size : {spec.vocab, spec.dim, spec.layers, spec.heads, spec.head_dim,
                                  spec.mlp_dim, spec.embed_dim, spec.position_rows})
    require<ConfigError>(size <= kMost && spec.heads * spec.head_dim <= kMost, file,
                         ": a model with a size of ", size, " cannot be built; floe allows up to ",
                         kMost);
  // An odd number turns one feature more, as in transformers: features turn in pairs.
  require<ConfigError>(spec.rotary.dim + spec.rotary.dim % 2 <= spec.head_dim, file,
                       ": rotary positions over ", spec.rotary.dim, " features of a head with ",
                       spec.head_dim, ", which has not so many");
  return spec;
}

void remove_dropout(DecoderSpec& spec) {
  spec.attention_dropout = spec.residual_dropout = spec.embedding_dropout = 0;
}

}  // namespace floe::models
