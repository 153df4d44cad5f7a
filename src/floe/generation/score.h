// How likely given texts are after a prompt.
//
//   const auto scored = score(model, {{prompt, {yes, no}}}, kBatchTokens, at::kCPU, at::kFloat);
//   scored[0][1].log_prob;  // of `no`
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "floe/generation/generate_session.h"

namespace floe::generation {

struct ScoreRequest {
  Prompt prompt;
  std::vector<std::vector<std::int64_t>> candidates;  // ids of each, at least one
};

struct CandidateScore {
  double log_prob = 0;  // natural logarithm, the sum over its tokens
  std::int64_t tokens = 0;

  double per_token() const { return log_prob / static_cast<double>(tokens); }
};

// The log-probability of every candidate after the prompt of its request, request by request. A
// prompt, with its images, is computed once and shared by its candidates; of these as many are
// computed together as the budget allows (Note [Token budget]). Candidates of one token cost
// nothing beside the prompt. The model is as `generate_each` wants it. Throws ConfigError or
// DataError for what the model cannot read.
std::vector<std::vector<CandidateScore>> score(models::LanguageModel& model,
                                               const std::vector<ScoreRequest>& requests,
                                               std::int64_t batch_tokens, at::Device device,
                                               at::ScalarType dtype, Lockstep* lockstep = nullptr);

// The number of the largest value, the first of equals; nothing when there is none.
std::optional<std::size_t> best_of(const std::vector<std::optional<double>>& values);

}  // namespace floe::generation
