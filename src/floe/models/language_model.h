// What trainer, generation and commands see of a model: Flamingo or a decoder alone.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "floe/models/model_input.h"

namespace floe::models {

// Intermediate values by name, on request.
using Stages = std::map<std::string, at::Tensor>;

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  virtual nn::Module& module() = 0;
  virtual const Decoder& decoder() const = 0;
  // The token that stands for an image; -1 for a model without images.
  virtual std::int64_t media_token() const { return -1; }
  virtual bool only_immediate_media() const { return true; }
  virtual std::int64_t image_size() const { return 0; }

  // Last hidden states [N, D], before the head. With images, they are encoded here; `media`, when it
  // is defined, is taken instead (encoded once for several passes).
  virtual at::Tensor hidden(const ModelInput& input, const at::Tensor& media, Stages* stages) = 0;
  // [M, latents, D]; undefined for a model without images.
  virtual at::Tensor encode_images(const at::Tensor& images, Stages* stages) { return {}; }

  // Parameters that train when nothing else is said (patterns).
  virtual std::vector<std::string> trained_by_default() const = 0;
};

// The loss by the input's LossRule, and the sum of token losses of each source [sources] (no
// gradient). Through the model's boundary: this is the forward of a training step.
std::tuple<at::Tensor, at::Tensor> training_loss(LanguageModel& model,
                                                 std::shared_ptr<const ModelInput> input);

// Logits of all tokens, [N, V].
at::Tensor all_logits(LanguageModel& model, std::shared_ptr<const ModelInput> input,
                      Stages* stages = nullptr);

// A decoder alone, under the names of its Hugging Face files.

class CausalLm : public Decoder, public LanguageModel {
 public:
  explicit CausalLm(const DecoderSpec& spec) : Decoder(spec, std::nullopt, {}) {}

  nn::Module& module() override { return *this; }
  const Decoder& decoder() const override { return *this; }
  at::Tensor hidden(const ModelInput& input, const at::Tensor& media, Stages* stages) override;
  std::vector<std::string> trained_by_default() const override { return {"*"}; }
};

}  // namespace floe::models
