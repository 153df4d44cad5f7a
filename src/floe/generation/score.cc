#include "floe/generation/score.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "floe/core/error.h"
#include "floe/generation/generate.h"
#include "floe/models/decoders/decoder.h"

namespace floe::generation {
namespace {

struct Candidate {
  std::size_t request = 0, number = 0;
  const std::vector<std::int64_t>* ids = nullptr;
};

void check_request(const models::LanguageModel& model, const ScoreRequest& request,
                   const std::string& name) {
  require<ConfigError>(!request.candidates.empty(), name, " has no candidates; give at least one");
  std::size_t longest = 0;
  const std::int64_t vocab = require_decoder(model).spec().vocab;
  for (std::size_t c = 0; c < request.candidates.size(); ++c) {
    const auto& ids = request.candidates[c];
    require<ConfigError>(!ids.empty(), name, ": candidate ", c, " is empty");
    longest = std::max(longest, ids.size());
    for (const std::int64_t id : ids)
      require<ConfigError>(id >= 0 && id < vocab, name, ": token ", id, " of candidate ", c,
                           " lies outside of the model's vocabulary of ", vocab);
  }
  check_prompt(model, request.prompt, name, static_cast<std::int64_t>(longest));
}

}  // namespace

std::vector<std::vector<CandidateScore>> score(models::LanguageModel& model,
                                               const std::vector<ScoreRequest>& requests,
                                               std::int64_t batch_tokens, at::Device device,
                                               at::ScalarType dtype, Lockstep* lockstep) {
  std::vector<std::vector<CandidateScore>> scores;
  std::vector<Prompt> prompts;
  std::vector<Candidate> candidates;
  std::size_t longest_prompt = 0, longest = 0;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    check_request(model, requests[r], str("request ", r));
    prompts.push_back(requests[r].prompt);
    longest_prompt = std::max(longest_prompt, prompts.back().ids.size());
    scores.emplace_back(requests[r].candidates.size());
    for (std::size_t c = 0; c < requests[r].candidates.size(); ++c) {
      candidates.push_back({r, c, &requests[r].candidates[c]});
      longest = std::max(longest, candidates.back().ids->size());
    }
  }
  if (requests.empty()) return scores;
  GenerateSession session(model, prompts, device, dtype,
                          {.company = Company::each_alone,
                           .room = static_cast<std::int64_t>(longest),
                           .lockstep = lockstep});
  session.read();
  // Similar lengths together, so that little of a pass is empty.
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [](const Candidate& a, const Candidate& b) { return a.ids->size() > b.ids->size(); });
  const auto at_once = static_cast<std::size_t>(std::max<std::int64_t>(
      1, batch_tokens / static_cast<std::int64_t>(longest_prompt + longest)));
  for (std::size_t first = 0; first < candidates.size(); first += at_once) {
    const std::size_t end = std::min(first + at_once, candidates.size());
    std::vector<GenerateSession::Continuation> texts;
    for (std::size_t i = first; i < end; ++i)
      texts.push_back({candidates[i].request, *candidates[i].ids});
    const at::Tensor log_probs = session.score(texts);
    const auto* log_prob = log_probs.const_data_ptr<float>();
    for (std::size_t i = first; i < end; ++i) {
      CandidateScore& result = scores[candidates[i].request][candidates[i].number];
      result.tokens = static_cast<std::int64_t>(candidates[i].ids->size());
      for (std::int64_t t = 0; t < result.tokens; ++t) result.log_prob += *log_prob++;
    }
  }
  return scores;
}

std::optional<std::size_t> best_of(const std::vector<std::optional<double>>& values) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] && (!best || *values[i] > *values[*best])) best = i;
  return best;
}

}  // namespace floe::generation
