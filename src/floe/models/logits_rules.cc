#include "floe/models/logits_rules.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

namespace floe::models {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

}  // namespace

void LogitsRules::apply(at::Tensor& scores, const std::vector<std::vector<std::int64_t>>& texts,
                        std::int64_t num_new) const {
  const std::int64_t vocab = scores.size(1);
  for (std::size_t s = 0; s < texts.size(); ++s) {
    float* row = scores.mutable_data_ptr<float>() + static_cast<std::int64_t>(s) * vocab;
    if (options_.repetition_penalty != 1) penalise_repetition(row, texts[s]);
    if (options_.no_repeat_ngram > 0) forbid_ngrams(row, texts[s]);
    if (num_new < options_.min_new_tokens)
      for (const std::int64_t end : options_.eos) row[end] = kNever;
  }
  if (!options_.sample) return;
  if (options_.temperature != 1) scores.div_(options_.temperature);
  if (options_.top_k > 0) keep_top_k(scores);
  if (options_.top_p < 1) keep_top_p(scores);
}

void LogitsRules::penalise_repetition(float* scores, const std::vector<std::int64_t>& text) const {
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  const std::unordered_set<std::int64_t> seen(text.begin(), text.end());
  for (const std::int64_t token : seen)
    scores[token] = scores[token] < 0 ? scores[token] * penalty : scores[token] / penalty;
}

void LogitsRules::forbid_ngrams(float* scores, const std::vector<std::int64_t>& text) const {
  const auto before = static_cast<std::size_t>(options_.no_repeat_ngram - 1);
  if (text.size() < before) return;
  const auto tail = text.end() - static_cast<std::ptrdiff_t>(before);
  for (auto last = text.begin() + static_cast<std::ptrdiff_t>(before); last < text.end(); ++last)
    if (std::equal(tail, text.end(), last - static_cast<std::ptrdiff_t>(before)))
      scores[*last] = kNever;
}

std::int64_t LogitsRules::least_kept() const {
  if (options_.num_beams == 1) return 1;
  return std::max<std::int64_t>(2, static_cast<std::int64_t>(options_.eos.size()) + 1);
}

void LogitsRules::keep_top_k(at::Tensor& scores) const {
  const std::int64_t k = std::min(std::max(options_.top_k, least_kept()), scores.size(1));
  const at::Tensor least = std::get<0>(scores.topk(k)).narrow(1, k - 1, 1);
  scores.masked_fill_(scores.lt(least), kNever);
}

void LogitsRules::keep_top_p(at::Tensor& scores) const {
  const auto [rising, index] = scores.sort(/*dim=*/-1, /*descending=*/false);
  at::Tensor dropped = rising.softmax(-1).cumsum(-1).le(1 - options_.top_p);
  const std::int64_t kept = std::min(least_kept(), scores.size(1));
  dropped.narrow(1, scores.size(1) - kept, kept).fill_(false);
  scores.masked_fill_(dropped.scatter(1, index, dropped), kNever);
}

}  // namespace floe::models
