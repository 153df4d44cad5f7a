// From the block `model:` to a model and the source of its weights. Nothing is read but headers.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "floe/io/tensors/tensor_source.h"
#include "floe/models/language_model.h"
#include "floe/models/model_config.h"
#include "floe/token/tokenizer.h"

namespace floe::models {

struct BuiltModel {
  std::shared_ptr<nn::Module> module;  // the same object as `model`
  LanguageModel* model = nullptr;
  std::shared_ptr<const TensorSource> source;  // null: nothing is read (skip_init)
  std::set<std::string> of_base;  // parameters that are read from base_files() alone, every element
  std::shared_ptr<const token::Tokenizer> tokenizer;  // null when there is none
  std::optional<token::FlamingoTokens> tokens;        // of a Flamingo with a tokenizer
};

// Deferred parameters (Note [Deferred parameters]) with requires_grad as the model's own rule says:
// fully_shard or nn::materialize gives them values from `source`. Throws ConfigError or DataError.
// `trained`: weights that win over all files, those of config.weights included; null: none.
BuiltModel build_model(const ModelConfig& config, std::uint64_t seed,
                       const std::shared_ptr<const TensorSource>& trained = nullptr,
                       const std::string& trained_path = "");

// The folders of the frozen base (model.lm, model.vision) that have weights: what is read from them
// can be read again, and a checkpoint names them instead of holding it.
std::vector<std::string> base_files(const ModelConfig& config);

}  // namespace floe::models
