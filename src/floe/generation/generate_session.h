// A model that is continued token by token, with a key-value cache.
//
// Note [Remembered images]
// A new token has no ids of the prompt beside it, so its media time (Note [Media time]) does not
// follow from what the model gets. OpenFlamingo remembers, for each place of the batch, which
// tokens of its last input with an `<image>` were one; a token's time is their number. When any
// sequence of the batch generates `<image>`, that step's input is remembered instead, for all
// sequences: those that did not generate it see no image from then on. What is remembered belongs
// to the place in the batch: it does not move when beams change places. All this is followed here,
// so that the same text comes out. A model whose files say `use_cache: false` (MPT's do) gets the
// whole text for every token from transformers, and so its true times: `images_of_whole_text`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "floe/models/language_model.h"
#include "floe/nn/attention.h"

namespace floe::generation {

struct Prompt {
  std::vector<std::int64_t> ids;
  at::Tensor images;  // [n, 3, H, W] on the CPU; undefined: none
};

// Order of calls: start; then any number of repeat, reorder, keep and step.
class GenerateSession {
 public:
  // Prompts must not be empty.
  GenerateSession(models::LanguageModel& model, const std::vector<Prompt>& prompts,
                  at::Device device, at::ScalarType dtype, bool images_of_whole_text = false);

  std::int64_t sequences() const { return cache_.sequences(); }

  // Logits of the token after each prompt, [sequences, V] fp32 on the CPU.
  at::Tensor start();
  // The same after one more token for each sequence.
  at::Tensor step(const std::vector<std::int64_t>& tokens);

  // Each sequence becomes `times` sequences, side by side.
  void repeat(std::int64_t times);
  // Sequence i continues the text of sequence from[i], which must have the same images.
  void reorder(const std::vector<std::int64_t>& from);
  // Only these sequences go on, in this order.
  void keep(const std::vector<std::int64_t>& sequences);

 private:
  at::Tensor forward(const std::vector<std::vector<std::int64_t>>& tokens, const at::Tensor& times);

  models::LanguageModel& model_;
  std::vector<Prompt> prompts_;
  at::Device device_;
  at::ScalarType dtype_;
  bool images_of_whole_text_;
  nn::KvCache cache_;
  at::Tensor images_;                     // [M, 3, H, W] until they are encoded, then [M, 0]
  at::Tensor media_;                      // [M, latents, D], encoded
  std::vector<std::int64_t> num_images_;  // of each sequence
  std::vector<std::int64_t> remembered_;  // see Note [Remembered images]
};

}  // namespace floe::generation
