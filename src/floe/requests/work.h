// What is done with requests: texts that continue their prompts, or scores of their candidates.
#pragma once

#include "floe/generation/generate.h"
#include "floe/models/build.h"
#include "floe/requests/run_requests.h"

namespace floe::requests {

// A model that is ready to compute, in evaluation mode. It stays with the caller.
struct ReadyModel {
  const models::BuiltModel& built;
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  generation::Lockstep* lockstep = nullptr;  // Note [Lockstep]; null: every rank has it whole
};

// Records have `ids` (of each result, best first), `text` with a tokenizer and `scores` with beams.
// Draws are those that `generate` makes for a prompt of the request's number.
Work generate_work(const ReadyModel& model, const generation::GenerateOptions& options);

// Records have, for each candidate, `log_probs`, `log_probs_per_token` and `tokens`, and which one
// is `best` and `best_per_token`. A candidate without tokens has null for a score, and is named as
// the request's problem.
Work score_work(const ReadyModel& model, std::int64_t batch_tokens);

}  // namespace floe::requests
