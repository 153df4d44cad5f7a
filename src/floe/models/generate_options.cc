#include "floe/models/generate_options.h"

#include "floe/core/error.h"

namespace floe::models {

void GenerateOptions::validate() const {
  const auto at_least = [](const char* name, std::int64_t value, std::int64_t least) {
    require<ConfigError>(value >= least, name, " is ", value, ", but must be at least ", least);
  };
  at_least("max_new_tokens", max_new_tokens, 1);
  at_least("min_new_tokens", min_new_tokens, 0);
  at_least("num_beams", num_beams, 1);
  at_least("num_return_sequences", num_return_sequences, 1);
  at_least("no_repeat_ngram", no_repeat_ngram, 0);
  at_least("top_k", top_k, 0);
  require<ConfigError>(min_new_tokens <= max_new_tokens, "min_new_tokens is ", min_new_tokens,
                       ", more than max_new_tokens, which is ", max_new_tokens);
  require<ConfigError>(repetition_penalty > 0, "repetition_penalty is ", repetition_penalty,
                       ", but must be above 0; 1 means none");
  require<ConfigError>(temperature > 0, "temperature is ", temperature,
                       ", but must be above 0; without sampling the most likely token is taken");
  require<ConfigError>(top_p > 0 && top_p <= 1, "top_p is ", top_p,
                       ", but must be above 0 and at most 1");
  require<ConfigError>(num_beams == 1 || num_return_sequences <= num_beams,
                       "num_return_sequences is ", num_return_sequences, ", but there are only ",
                       num_beams, " beams; raise num_beams");
  require<ConfigError>(num_beams > 1 || sample || num_return_sequences == 1,
                       "num_return_sequences is ", num_return_sequences,
                       ", but without beams and sampling there is only one; raise num_beams or "
                       "turn sampling on");
}

}  // namespace floe::models
