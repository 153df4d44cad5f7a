// How text is continued: the words and meanings of Hugging Face's `generate`.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace floe::models {

// When beam search ends.
enum class EarlyStopping {
  no,     // when the best open beam, at its present length, is worse than all finished ones
  yes,    // as soon as there are num_beams finished ones
  never,  // when no open beam can become better at any length
};

struct GenerateOptions {
  std::int64_t max_new_tokens = 20, min_new_tokens = 0;
  std::vector<std::int64_t> eos;  // tokens that end a text; none: it ends at max_new_tokens

  std::int64_t num_beams = 1;             // 1: no beam search
  std::int64_t num_return_sequences = 1;  // per prompt
  // Score of a finished beam: its log-probability / number of new tokens ^ length_penalty.
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::no;

  double repetition_penalty = 1;
  std::int64_t no_repeat_ngram = 0;  // no n tokens in a row occur twice; 0: no such rule

  bool sample = false;  // draw tokens instead of taking the most likely
  double temperature = 1;
  std::int64_t top_k = 0;  // draw from the k most likely; 0: from all
  double top_p = 1;        // draw from the most likely ones that together have this probability
  std::uint64_t seed = 0;

  // How media times of new tokens are found: see Note [Remembered images].
  bool images_of_whole_text = false;

  // Called before each token with the number of new ones so far; what it throws ends the work.
  std::function<void(std::int64_t)> on_step;

  // Throws ConfigError for values that make no sense.
  void validate() const;
};

}  // namespace floe::models
