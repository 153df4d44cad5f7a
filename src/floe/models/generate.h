// Text from a model: greedy, beam search or sampling, with the ids that transformers' `generate`
// gives through OpenFlamingo. docs/generation.md tells more.
//
//   GenerateOptions options;
//   options.num_beams = 3;
//   options.eos = {endofchunk};
//   for (const Generated& text : generate(model, {{ids, images}}, options, at::kCPU, at::kFloat)) ...
#pragma once

#include <optional>
#include <vector>

#include "floe/models/generate_options.h"
#include "floe/models/generate_session.h"

namespace floe::models {

struct Generated {
  std::size_t prompt = 0;         // which one it continues
  std::vector<std::int64_t> ids;  // without the prompt, with the end token if one came
  std::optional<double> score;    // beam search only
};

// num_return_sequences texts for each prompt, prompt by prompt, best first. The model is in
// evaluation mode with its parameters on `device` in `dtype`. Prompts have no padding; a prompt gets
// the same text alone and among others, except after a generated `<image>`
// (Note [Remembered images]) and in sampling, where the numbers depend on its place.
// Throws ConfigError for options and prompts that do not fit the model; warns where the number of
// images is not that of `<image>` tokens, which the model computes nevertheless.
std::vector<Generated> generate(LanguageModel& model, const std::vector<Prompt>& prompts,
                                const GenerateOptions& options, at::Device device,
                                at::ScalarType dtype);

}  // namespace floe::models
