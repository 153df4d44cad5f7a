// What is in a model's folders, before it is built: architecture, weights, tokenizer, image tower.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "floe/models/model_config.h"
#include "floe/token/tokenizer.h"

namespace floe::starter {

struct ModelFolders {
  std::string lm, vision, tokenizer;  // as given; empty: not given
};

struct ModelFacts {
  models::ModelConfig::Type type = models::ModelConfig::Type::causal_lm;
  std::string family;             // "model_type" of its config.json
  std::int64_t weight_bytes = 0;  // of the language model's files
  std::string weight_dtypes;      // "bf16", "fp32 and bf16"
  // The longest sequence that it has positions for; 0: no limit is known.
  std::int64_t context = 0;
  bool learned_positions = false;  // so that there are none beyond it
  std::int64_t vocab = 0, dim = 0, layers = 0;
  bool tied = false;
  std::vector<std::string> lora_targets;  // its attention's queries and values
  std::string tower;                      // in words; empty: none
  int image_size = 224;

  std::unique_ptr<token::Tokenizer> tokenizer;  // null: there is none
  token::FlamingoTokens tokens;                 // of a Flamingo

  bool is_flamingo() const { return type == models::ModelConfig::Type::flamingo; }
  // "opt, 12 layers of width 768, vocabulary of 50272, tied to its head; weights 239 MiB in fp16"
  std::string text() const;
};

// Reads headers alone. Throws ConfigError for what is missing, damaged or not supported.
ModelFacts look_at_model(const ModelFolders& folders);

}  // namespace floe::starter
