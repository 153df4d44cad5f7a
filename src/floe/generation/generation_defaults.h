// What a model's files say about texts that it continues.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "floe/models/language_model.h"
#include "floe/models/model_config.h"

namespace floe::generation {

struct GenerationDefaults {
  std::vector<std::int64_t> eos;      // <|endofchunk|> for a Flamingo, else those of the files
  bool images_of_whole_text = false;  // Note [Remembered images]
  std::optional<std::int64_t> bos;    // BOS, else EOS: what stands in front of a text
  std::int64_t positions = 0;         // tokens that the files say it sees at once; 0: nothing
};

// From generation_config.json of the language model, or config.json without one, as transformers
// does. Throws DataError for files that say it wrongly. `with_ends`: eos is wanted.
GenerationDefaults generation_defaults(const models::ModelConfig& config,
                                       const models::LanguageModel& model, bool with_ends = true);

}  // namespace floe::generation
