// From samples to requests: the context in front, the prompt behind it, and the pictures of both.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/eval/tasks/draw.h"
#include "floe/eval/tasks/samples.h"

namespace floe::eval {

// A request for each sample that is asked, in the order of the draw: `prompt`, `images`, `id` (that
// of the sample) and for classes `candidates`.
std::vector<nlohmann::json> requests_of(const TaskConfig& task, const std::vector<Sample>& tests,
                                        const std::vector<Sample>& train, const TrialDraw& draw,
                                        std::int64_t shots);

// Throws ConfigError where templates name fields that samples do not have, or a context has more
// samples than there are: what requests_of and draw_trial would say once the model is there.
void check_prompts(const TaskData& data);

// The text cut before the first stop, and without what is to be removed.
std::string cut_answer(const TaskConfig& task, const std::string& text);

// The names of a sample's classes.
const std::vector<std::string>& classes_of(const TaskConfig& task, const Sample& sample);

// Note [Windows]
// Perplexity of a text that is longer than the model sees at once, as lm-eval-harness counts it:
// windows follow each other, every token is predicted once, from the tokens of its window in front
// of it; the last window reaches back as far as it can. In front of the first token stands the
// prefix.
struct Window {
  std::vector<std::int64_t> context, tokens;
};
std::vector<Window> windows_of(const std::vector<std::int64_t>& ids, std::int64_t prefix,
                               std::int64_t length);

}  // namespace floe::eval
