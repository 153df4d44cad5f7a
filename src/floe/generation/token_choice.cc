#include "floe/generation/token_choice.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <unordered_set>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/philox.h"

namespace floe::generation {
namespace {

constexpr float kBarred = -1e9F;  // see Note [Beams]
constexpr float kNever = -std::numeric_limits<float>::infinity();

// The places of the `count` largest. By torch, whose order of ties is the reference's.
std::vector<std::size_t> largest(const std::vector<float>& values, std::int64_t count) {
  const at::Tensor places = std::get<1>(at::tensor(values).topk(count));
  const auto* place = places.const_data_ptr<std::int64_t>();
  return {place, place + count};
}

float length_divisor(std::int64_t length, double penalty) {
  return static_cast<float>(std::pow(static_cast<double>(length), penalty));
}

bool all_finished(const std::vector<BeamSearch::Text>& texts) {
  return std::all_of(texts.begin(), texts.end(), [](const auto& text) { return text.finished; });
}

// In (0, 1), never an end.
double uniform(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(high) << 32 | low) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1p-53;
}

// Some tokens of some sequences, in their scores [S, V] wherever those are.
class Places {
 public:
  explicit Places(at::Tensor& scores) : flat_(scores.view(-1)), vocab_(scores.size(1)) {}

  void add(std::size_t sequence, std::int64_t token) {
    places_.push_back(static_cast<std::int64_t>(sequence) * vocab_ + token);
  }
  at::Tensor values() const { return flat_.index_select(0, index()); }
  void set(const at::Tensor& values) {
    if (!places_.empty()) flat_.index_put_({index()}, values);
  }

 private:
  at::Tensor index() const { return at::tensor(places_, at::kLong).to(flat_.device()); }

  at::Tensor flat_;
  std::int64_t vocab_;
  std::vector<std::int64_t> places_;
};

}  // namespace

void LogitsRules::apply(at::Tensor& scores, const std::vector<std::vector<std::int64_t>>& texts,
                        std::int64_t num_new) const {
  if (options_.repetition_penalty != 1) penalise_repetition(scores, texts);
  if (options_.no_repeat_ngram > 0) forbid_ngrams(scores, texts);
  if (num_new < options_.min_new_tokens && !options_.eos.empty())
    scores.index_fill_(1, at::tensor(options_.eos, at::kLong).to(scores.device()), kNever);
  if (!options_.sample) return;
  if (options_.temperature != 1) scores.div_(options_.temperature);
  if (options_.top_k > 0) keep_top_k(scores);
  if (options_.top_p < 1) keep_top_p(scores);
}

bool LogitsRules::change(std::int64_t num_new) const {
  return options_.sample || options_.repetition_penalty != 1 || options_.no_repeat_ngram > 0 ||
         num_new < options_.min_new_tokens;
}

void LogitsRules::penalise_repetition(at::Tensor& scores,
                                      const std::vector<std::vector<std::int64_t>>& texts) const {
  Places seen(scores);
  for (std::size_t s = 0; s < texts.size(); ++s)
    for (const std::int64_t token : std::unordered_set(texts[s].begin(), texts[s].end()))
      seen.add(s, token);
  const at::Tensor values = seen.values();
  seen.set(at::where(values.lt(0), values * options_.repetition_penalty,
                     values / options_.repetition_penalty));
}

void LogitsRules::forbid_ngrams(at::Tensor& scores,
                                const std::vector<std::vector<std::int64_t>>& texts) const {
  const auto before = static_cast<std::size_t>(options_.no_repeat_ngram - 1);
  Places forbidden(scores);
  for (std::size_t s = 0; s < texts.size(); ++s) {
    const std::vector<std::int64_t>& text = texts[s];
    if (text.size() < before) continue;
    const auto tail = text.end() - static_cast<std::ptrdiff_t>(before);
    for (auto last = text.begin() + static_cast<std::ptrdiff_t>(before); last < text.end(); ++last)
      if (std::equal(tail, text.end(), last - static_cast<std::ptrdiff_t>(before)))
        forbidden.add(s, *last);
  }
  forbidden.set(at::scalar_tensor(kNever, scores.options()));
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

// Adding Gumbel noise to log-weights and taking the largest draws without putting back.
std::vector<std::int64_t> Sampler::draw(std::span<const float> log_weights, std::size_t count,
                                        std::uint64_t stream, std::uint64_t step) const {
  require(count <= log_weights.size(), "cannot draw ", count, " of ", log_weights.size());
  const Philox random(Hash64().add(seed_).add(stream).add(step).value());
  std::vector<std::pair<double, std::int64_t>> keys;
  keys.reserve(log_weights.size());
  for (std::size_t i = 0; i < log_weights.size(); ++i) {
    double key = log_weights[i];
    if (std::isfinite(key)) {
      const auto words = random.block(i / 2);
      const std::size_t half = i % 2 * 2;
      key -= std::log(-std::log(uniform(words[half], words[half + 1])));
    }
    keys.emplace_back(key, static_cast<std::int64_t>(i));
  }
  const auto drawn = keys.begin() + static_cast<std::ptrdiff_t>(count);
  std::partial_sort(keys.begin(), drawn, keys.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::vector<std::int64_t> places;
  for (auto key = keys.begin(); key != drawn; ++key) places.push_back(key->second);
  return places;
}

BeamSearch::BeamSearch(std::int64_t num_prompts, const GenerateOptions& options, Company company,
                       const std::vector<std::uint64_t>& streams)
    : options_(options), company_(company), sampler_(options.seed) {
  const auto beams = static_cast<std::size_t>(options.num_beams);
  Prompt prompt;
  // All beams begin alike: only the first may be continued in the first step.
  prompt.open.assign(beams, Text{.score = kBarred});
  prompt.open[0].score = 0;
  prompt.finished.assign(beams, Text{.score = kBarred});
  for (std::size_t p = 0; p < static_cast<std::size_t>(num_prompts); ++p) {
    prompt.stream = streams.empty() ? p : streams[p];
    prompts_.push_back(prompt);
    searched_.push_back(p);
  }
}

const std::vector<BeamSearch::Text>& BeamSearch::finished(std::int64_t prompt) const {
  return prompts_[static_cast<std::size_t>(prompt)].finished;
}

bool BeamSearch::ends(std::int64_t token) const {
  return length_ >= options_.max_new_tokens ||
         std::find(options_.eos.begin(), options_.eos.end(), token) != options_.eos.end();
}

BeamSearch::Candidates BeamSearch::best_continuations(const at::Tensor& log_probs) const {
  const auto num_prompts = static_cast<std::int64_t>(searched_.size());
  const std::int64_t vocab = log_probs.size(1);
  const auto per_beam =
      std::max<std::int64_t>(2, 1 + static_cast<std::int64_t>(options_.eos.size()));
  const std::int64_t count = per_beam * options_.num_beams;
  require<ConfigError>(vocab >= per_beam, "a vocabulary of ", vocab, " is too small for ",
                       options_.eos.size(), " end tokens");
  std::vector<float> open;
  for (const std::size_t p : searched_)
    for (const Text& beam : prompts_[p].open) open.push_back(beam.score);
  const at::Tensor totals = (log_probs + at::tensor(open).to(log_probs.device()).unsqueeze(1))
                                .view({num_prompts, options_.num_beams * vocab});
  if (!options_.sample) {
    const auto [scores, places] = totals.topk(count);
    return {scores.cpu(), places.cpu()};
  }
  std::vector<std::int64_t> drawn;
  const auto width = static_cast<std::size_t>(totals.size(1));
  for (std::size_t r = 0; r < searched_.size(); ++r) {
    const std::span<const float> row(totals.const_data_ptr<float>() + r * width, width);
    const auto places =
        sampler_.draw(row, static_cast<std::size_t>(count), prompts_[searched_[r]].stream,
                      static_cast<std::uint64_t>(length_));
    drawn.insert(drawn.end(), places.begin(), places.end());
  }
  const at::Tensor places = at::tensor(drawn, at::kLong).view({num_prompts, count});
  return {totals.gather(1, places), places};
}

BeamSearch::Next BeamSearch::advance(const at::Tensor& log_probs) {
  const std::int64_t vocab = log_probs.size(1);
  const Candidates best = best_continuations(log_probs);
  const std::int64_t count = best.scores.size(1);
  ++length_;
  Next next;
  std::vector<std::size_t> still;
  bool all_end = true;
  for (std::size_t r = 0; r < searched_.size(); ++r) {
    if (company_ == Company::each_alone) all_end = true;
    Prompt& prompt = prompts_[searched_[r]];
    const auto row = static_cast<std::int64_t>(r);
    const std::int64_t first = row * options_.num_beams;
    const auto* score = best.scores.const_data_ptr<float>() + row * count;
    const auto* place = best.places.const_data_ptr<std::int64_t>() + row * count;
    std::vector<Text> candidates;
    std::vector<float> going_on;  // scores as they count for open beams
    for (std::int64_t c = 0; c < count; ++c) {
      Text& text = candidates.emplace_back(prompt.open[static_cast<std::size_t>(place[c] / vocab)]);
      text.ids.push_back(place[c] % vocab);
      text.score = score[c];
      text.finished = ends(text.ids.back());
      going_on.push_back(score[c] + (text.finished ? kBarred : 0));
      all_end = all_end && text.finished;
    }
    const std::vector<std::size_t> best_open = largest(going_on, options_.num_beams);
    prompt.open.clear();
    for (const std::size_t c : best_open) prompt.open.push_back({candidates[c].ids, going_on[c]});
    finish(prompt, candidates);
    prompt.improvable = prompt.improvable && can_improve(prompt);
    if (company_ == Company::each_alone && is_over({&searched_[r], 1}, all_end)) continue;
    still.push_back(searched_[r]);
    for (std::size_t beam = 0; beam < best_open.size(); ++beam) {
      next.tokens.push_back(prompt.open[beam].ids.back());
      next.from.push_back(first + place[best_open[beam]] / vocab);
      next.places.push_back(first + static_cast<std::int64_t>(beam));
    }
  }
  searched_ = std::move(still);
  done_ = searched_.empty() || (company_ == Company::one_batch && is_over(searched_, all_end));
  return next;
}

bool BeamSearch::is_over(std::span<const std::size_t> prompts, bool all_end) const {
  const auto improvable = [&](std::size_t p) { return prompts_[p].improvable; };
  const auto full = [&](std::size_t p) { return all_finished(prompts_[p].finished); };
  return all_end || std::none_of(prompts.begin(), prompts.end(), improvable) ||
         (options_.early_stopping == EarlyStopping::yes &&
          std::all_of(prompts.begin(), prompts.end(), full));
}

void BeamSearch::finish(Prompt& prompt, const std::vector<Text>& candidates) const {
  const bool full = options_.early_stopping == EarlyStopping::yes && all_finished(prompt.finished);
  std::vector<Text> merged = prompt.finished;
  for (std::size_t c = 0; c < candidates.size(); ++c) {
    Text& text = merged.emplace_back(candidates[c]);
    // The others only stand by for the open beams.
    text.finished = text.finished && c < static_cast<std::size_t>(options_.num_beams);
    text.score /= length_divisor(length_, options_.length_penalty);
    if (full) text.score += kBarred;
    if (!prompt.improvable) text.score += kBarred;
    if (!text.finished) text.score += kBarred;
  }
  std::vector<float> scores;
  for (const Text& text : merged) scores.push_back(text.score);
  prompt.finished.clear();
  for (const std::size_t place : largest(scores, options_.num_beams))
    prompt.finished.push_back(merged[place]);
}

bool BeamSearch::can_improve(const Prompt& prompt) const {
  const bool longest_counts =
      options_.early_stopping == EarlyStopping::never && options_.length_penalty > 0;
  const std::int64_t length = longest_counts ? options_.max_new_tokens : length_;
  const float best = prompt.open[0].score / length_divisor(length, options_.length_penalty);
  const auto by_score = [](const Text& a, const Text& b) { return a.score < b.score; };
  const float worst =
      std::min_element(prompt.finished.begin(), prompt.finished.end(), by_score)->score;
  const auto is_finished = [](const Text& text) { return text.finished; };
  const bool any_finished =
      std::any_of(prompt.finished.begin(), prompt.finished.end(), is_finished);
  return (any_finished && best > worst) || (!all_finished(prompt.finished) && best > kBarred);
}

}  // namespace floe::generation
