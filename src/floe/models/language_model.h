// What trainer, generation, files and commands see of a model, whatever its architecture: a
// description of it (ModelInfo), its loss and logits, and what only some models can do.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "floe/image/transform.h"
#include "floe/models/model_input.h"
#include "floe/nn/module.h"

namespace floe::models {

class Decoder;

// Modules by their names in Hugging Face's files, without the last dot. Empty: there is none.
struct ModelParts {
  std::string embed;   // the table of tokens
  std::string layers;  // their numbers follow
  std::string head;    // what turns hidden states into logits, for labelled tokens only
  std::vector<std::string> tables;  // further ones that are looked up, such as positions
  std::vector<std::string> before;  // further ones in front of the first layer
};

struct ModelInfo {
  std::string kind;    // "flamingo", "causal_lm", "masked_lm"
  std::string family;  // "model_type" of its config.json
  std::int64_t vocab = 0, dim = 0, layers = 0;
  // Learned positions: rows of their table, and the row of a sequence's first token. No rows: no
  // limit.
  std::int64_t position_rows = 0, position_offset = 0;
  // Tokens that a sequence may have; nothing: no limit.
  std::optional<std::int64_t> positions() const {
    if (position_rows == 0) return std::nullopt;
    return position_rows - position_offset;
  }

  bool causal = true;  // a token sees nothing behind itself
  LabelRule labels = LabelRule::next_token;
  std::vector<std::string> trained_by_default;  // patterns

  bool tied = false;                       // the head's weight is the embedding
  double init_range = 0.02;                // standard deviation of a longer vocabulary's new rows
  std::vector<std::int64_t> trained_rows;  // of the embedding, see Note [Trained rows]
  ModelParts parts;
  // Tensors that files of the family may hold and that floe does not need (patterns), and how names
  // ended in older files: {".weight", ".gamma"}.
  std::vector<std::string> ignored;
  std::vector<std::pair<std::string, std::string>> older_endings;
};

// Intermediate values by name, on request.
using Stages = std::map<std::string, at::Tensor>;

class LanguageModel {
 public:
  explicit LanguageModel(ModelInfo info) : info_(std::move(info)) {}
  virtual ~LanguageModel() = default;
  LanguageModel(const LanguageModel&) = delete;
  LanguageModel& operator=(const LanguageModel&) = delete;

  const ModelInfo& info() const { return info_; }
  const std::vector<std::string>& trained_by_default() const { return info_.trained_by_default; }
  virtual nn::Module& module() = 0;

  // What its layers read of a batch. `cache` is null except in generation.
  virtual BatchContext context(std::shared_ptr<const nn::Segments> segments,
                               const at::Tensor& positions, nn::KvCache* cache,
                               at::ScalarType dtype) const = 0;
  // Last hidden states [N, D], before the head. With images, they are encoded here; `media`, when
  // it is defined, is taken instead (encoded once for several passes).
  virtual at::Tensor hidden(const ModelInput& input, const at::Tensor& media, Stages* stages) = 0;
  // The head: hidden states [L, D] of some tokens → [L, V].
  virtual at::Tensor logits(const at::Tensor& hidden) = 0;
  // The head and its loss: see nn::cross_entropy.
  virtual std::pair<at::Tensor, at::Tensor> loss(const at::Tensor& hidden,
                                                 const at::Tensor& targets,
                                                 const at::Tensor& weights, double z_loss) = 0;

  // What continues text, token by token; null for a model that cannot.
  virtual const Decoder* decoder() const { return nullptr; }

  // The token that stands for an image; -1 for a model without images.
  virtual std::int64_t media_token() const { return -1; }
  virtual bool only_immediate_media() const { return true; }
  virtual std::int64_t image_size() const { return 0; }
  // What makes pictures as the model takes them.
  virtual image::TransformOptions picture_options() const { return {}; }
  // [M, latents, D]; undefined for a model without images.
  virtual at::Tensor encode_images(const at::Tensor& images, Stages* stages) { return {}; }

 private:
  ModelInfo info_;
};

// The loss by the input's LossRule, and the sum of token losses of each source [sources] (no
// gradient). Through the model's boundary: this is the forward of a training step.
std::tuple<at::Tensor, at::Tensor> training_loss(LanguageModel& model,
                                                 const std::shared_ptr<const ModelInput>& input);

// Logits of all tokens, [N, V].
at::Tensor all_logits(LanguageModel& model, const std::shared_ptr<const ModelInput>& input,
                      Stages* stages = nullptr);

}  // namespace floe::models
