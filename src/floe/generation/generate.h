// Text from a model: greedy, beam search or sampling, with the ids that transformers' `generate`
// gives through OpenFlamingo. docs/generation.md tells more.
//
//   GenerateOptions options;
//   options.num_beams = 3;
//   options.eos = {endofchunk};
//   const auto texts = generate(model, {{ids, images}}, options, at::kCPU, at::kFloat);
//
// Many prompts that have nothing to do with each other: generate_each, in the batches of
// batching.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "floe/generation/generate_session.h"

namespace floe::generation {

// When beam search ends.
enum class EarlyStopping {
  no,     // when the best open beam, at its present length, is worse than all finished ones
  yes,    // as soon as there are num_beams finished ones
  never,  // when no open beam can become better at any length
};

// How text is continued: the words and meanings of Hugging Face's `generate`.
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

struct Generated {
  std::size_t prompt = 0;         // which one it continues
  std::vector<std::int64_t> ids;  // without the prompt, with the end token if one came
  std::optional<double> score;    // beam search only
};

// What continues the text. Throws ConfigError for a model that cannot.
const models::Decoder& require_decoder(const models::LanguageModel& model);

// num_return_sequences texts for each prompt, prompt by prompt, best first. The model is in
// evaluation mode with its parameters on `device` in `dtype`. Prompts have no padding; a prompt
// gets the same text alone and among others, except after a generated `<image>` (Note [Remembered
// images]) and in sampling, where the numbers depend on its place. Throws ConfigError for options
// and prompts that do not fit the model; warns where the number of images is not that of `<image>`
// tokens, which the model computes nevertheless.
std::vector<Generated> generate(models::LanguageModel& model, const std::vector<Prompt>& prompts,
                                const GenerateOptions& options, at::Device device,
                                at::ScalarType dtype);

// The same for prompts that are computed together but each as if it were alone: texts do not depend
// on what else is in the batch (but for rounding, which a batch of another size may do
// differently). Prompt p gets the draws that prompt number streams[p] gets from `generate`. No
// warnings. `lockstep`: for a model that ranks hold together (Note [Lockstep]).
std::vector<Generated> generate_each(models::LanguageModel& model,
                                     const std::vector<Prompt>& prompts,
                                     const std::vector<std::uint64_t>& streams,
                                     const GenerateOptions& options, at::Device device,
                                     at::ScalarType dtype, Lockstep* lockstep = nullptr);

// Throws ConfigError or DataError for a prompt that the model cannot read, or that leaves no
// positions for so many new tokens. `name`: of the prompt, for the message.
void check_prompt(const models::LanguageModel& model, const Prompt& prompt, const std::string& name,
                  std::int64_t max_new_tokens);

}  // namespace floe::generation
