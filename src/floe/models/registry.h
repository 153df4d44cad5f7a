// The families of models that floe has, by the "model_type" of a Hugging Face config.json.
// docs/adding-a-model.md tells how to add one: a file that describes it, and its line in
// registry.cc.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "floe/models/decoders/decoder_spec.h"
#include "floe/models/hf_config.h"
#include "floe/models/language_model.h"

namespace floe::models {

struct ModelFamily {
  std::string model_type;
  // What "architectures" may name, where a file has it: a model is more than its type when there
  // are several heads for it. Empty: nothing is looked at.
  std::vector<std::string> architectures;
  std::string auto_class;  // of transformers: what loads an exported folder
  // From config.json; dropout is as the file has it, or none. The result is an nn::Module as well,
  // with deferred parameters (Note [Deferred parameters]).
  std::function<std::shared_ptr<LanguageModel>(const HfConfig&, bool dropout)> build;
  // Of a decoder: its description, which a Flamingo is built around. Empty for other models.
  std::function<DecoderSpec(const HfConfig&)> decoder;
};

// Null for a type that floe does not have.
const ModelFamily* find_family(const std::string& model_type);
// Of config.json. Throws ConfigError, naming its file, for a family that floe does not have.
const ModelFamily& family_of(const HfConfig& config);

// Of a decoder's config.json. Throws ConfigError, naming the file, for other families, and for
// settings that floe does not compute.
DecoderSpec decoder_spec(const HfConfig& config);

}  // namespace floe::models
