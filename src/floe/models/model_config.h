// The block `model:`, which is also the whole YAML of `floe forward` and `floe generate`.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/models/flamingo/gated_cross_attention.h"
#include "floe/models/flamingo/perceiver.h"
#include "floe/schema/codec.h"

namespace floe {
namespace config {
template <class T>
class Schema;
}

namespace models {

void describe(config::Schema<PerceiverSpec>& s);
void describe(config::Schema<CrossAttentionSpec>& s);

struct LoraConfig {
  std::vector<std::string> targets;  // patterns over the names of linear layers
  std::int64_t rank = 16;
  double alpha = 32, dropout = 0;
  bool rslora = false;
  std::string weights;  // a PEFT folder to start from; empty: new adapters
};
void describe(config::Schema<LoraConfig>& s);

struct ModelConfig {
  // `from_config`: what the config.json of `lm` says.
  enum class Type { flamingo, causal_lm, from_config };
  enum class Dropout { none, config };  // "0": none; "config": as the model's config.json has it

  Type type = Type::flamingo;
  std::string lm, vision, weights, tokenizer;
  std::int64_t cross_attn_every_n_layers = 1;
  PerceiverSpec perceiver;
  CrossAttentionSpec cross_attn;
  bool vision_tokens_after_ln_post = false;
  bool only_attend_immediate_media = true;
  bool freeze_lm_embeddings = false;
  std::optional<std::int64_t> media_token_id, endofchunk_token_id;
  Dropout dropout = Dropout::none;
  std::optional<LoraConfig> lora;
  bool skip_init = false;
  bool random_init = false;
};
inline auto enum_names(ModelConfig::Type) {
  using enum ModelConfig::Type;
  return std::to_array<std::pair<std::string_view, ModelConfig::Type>>(
      {{"flamingo", flamingo}, {"causal_lm", causal_lm}, {"auto", from_config}});
}
inline auto enum_names(ModelConfig::Dropout) {
  using enum ModelConfig::Dropout;
  return std::to_array<std::pair<std::string_view, ModelConfig::Dropout>>(
      {{"0", none}, {"config", config}});
}
void describe(config::Schema<ModelConfig>& s);

// Paths of a file in `folder` become absolute, by Note [Relative paths].
void resolve_paths(ModelConfig& config, const std::string& folder);

}  // namespace models
}  // namespace floe
