// A decoder alone, under the names of its Hugging Face files.
#pragma once

#include "floe/models/language_model.h"

namespace floe::models {

class CausalLm : public Decoder, public LanguageModel {
 public:
  explicit CausalLm(const DecoderSpec& spec) : Decoder(spec, std::nullopt, {}) {}

  nn::Module& module() override { return *this; }
  const Decoder& decoder() const override { return *this; }
  at::Tensor hidden(const ModelInput& input, const at::Tensor& media, Stages* stages) override;
  std::vector<std::string> trained_by_default() const override { return {"*"}; }
};

}  // namespace floe::models
