// What is done to the scores of the next token before one is chosen, in transformers' order:
// repetition penalty, forbidden n-grams, no early end; then, for sampling, temperature, top-k, top-p.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "floe/models/generate_options.h"

namespace floe::models {

class LogitsRules {
 public:
  explicit LogitsRules(const GenerateOptions& options) : options_(options) {}

  // scores [S, V] fp32 on the CPU, contiguous, are changed in place: logits, or log-probabilities in
  // beam search. texts[s] are all tokens of sequence s so far, of which num_new are not the prompt's.
  void apply(at::Tensor& scores, const std::vector<std::vector<std::int64_t>>& texts,
             std::int64_t num_new) const;

 private:
  void penalise_repetition(float* scores, const std::vector<std::int64_t>& text) const;
  void forbid_ngrams(float* scores, const std::vector<std::int64_t>& text) const;
  void keep_top_k(at::Tensor& scores) const;
  void keep_top_p(at::Tensor& scores) const;
  // Beams need something to go on with when all ends are drawn.
  std::int64_t least_kept() const;

  GenerateOptions options_;
};

}  // namespace floe::models
