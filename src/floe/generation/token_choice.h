// How the next tokens are chosen: rules on their scores, drawing, and the books of beam search.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "floe/generation/generate.h"

namespace floe::generation {

// What is done to the scores of the next token before one is chosen, in transformers' order:
// repetition penalty, forbidden n-grams, no early end; then, for sampling, temperature, top-k,
// top-p.
class LogitsRules {
 public:
  explicit LogitsRules(const GenerateOptions& options) : options_(options) {}

  // scores [S, V] fp32, contiguous, are changed in place: logits, or log-probabilities
  // in beam search. texts[s] are all tokens of sequence s so far, of which num_new are not the
  // prompt's.
  void apply(at::Tensor& scores, const std::vector<std::vector<std::int64_t>>& texts,
             std::int64_t num_new) const;
  // Whether they change anything after so many new tokens.
  bool change(std::int64_t num_new) const;

 private:
  void penalise_repetition(at::Tensor& scores,
                           const std::vector<std::vector<std::int64_t>>& texts) const;
  void forbid_ngrams(at::Tensor& scores, const std::vector<std::vector<std::int64_t>>& texts) const;
  void keep_top_k(at::Tensor& scores) const;
  void keep_top_p(at::Tensor& scores) const;
  // Beams need something to go on with when all ends are drawn.
  std::int64_t least_kept() const;

  GenerateOptions options_;
};

// Drawing tokens, with numbers that are a function of (seed, stream, step): a draw is the same on
// every machine and does not depend on what else was drawn.
class Sampler {
 public:
  explicit Sampler(std::uint64_t seed) : seed_(seed) {}

  // `count` different places of `log_weights`, drawn one after the other without putting back, each
  // with a chance in proportion to exp(log_weight); in the order drawn. Weights need no norm;
  // places of weight -inf come last, when nothing else is left.
  std::vector<std::int64_t> draw(std::span<const float> log_weights, std::size_t count,
                                 std::uint64_t stream, std::uint64_t step) const;

 private:
  std::uint64_t seed_;
};

// The books of beam search, kept as transformers 4.57 keeps them.
//
// Note [Beams]
// A prompt has num_beams open beams and as many places for finished texts. Each step looks at all
// continuations of the open beams and takes the best 2 * num_beams of them (more with several end
// tokens), so that num_beams remain to go on with when others end. A continuation that ends gets a
// place among the finished when it is one of the best num_beams and its score, divided by a power
// of its length, is good enough. Where an entry must not be chosen, a billion is taken from its
// score, rather than leaving it out: ties and texts without an end then fall as they do in
// transformers. Prompts of one batch are searched until all of them have ended, as there; each
// alone, a prompt leaves as soon as its own search has.
class BeamSearch {
 public:
  // `streams`: which draws each prompt gets; empty: by its number.
  BeamSearch(std::int64_t num_prompts, const GenerateOptions& options,
             Company company = Company::one_batch, const std::vector<std::uint64_t>& streams = {});

  // How the open beams go on. Sequences are the beams of those prompts that are still searched, in
  // order, num_beams of each.
  struct Next {
    std::vector<std::int64_t> tokens;  // what each sequence that goes on gets
    std::vector<std::int64_t> from;    // the sequence before this step whose text it continues
    std::vector<std::int64_t> places;  // the one whose place it has
  };
  // log_probs [sequences, V] fp32, of the next token after each open beam.
  Next advance(const at::Tensor& log_probs);
  bool done() const { return done_; }

  struct Text {
    std::vector<std::int64_t> ids;  // without the prompt
    float score = 0;
    bool finished = false;
  };
  // Of one prompt, best first.
  const std::vector<Text>& finished(std::int64_t prompt) const;

 private:
  struct Prompt {
    std::vector<Text> open, finished;
    bool improvable = true;  // whether an open beam can still become one of the best
    std::uint64_t stream = 0;
  };
  struct Candidates {
    at::Tensor scores, places;  // [searched, candidates] on the CPU; place = beam * V + token
  };
  Candidates best_continuations(const at::Tensor& log_probs) const;
  bool ends(std::int64_t token) const;
  void finish(Prompt& prompt, const std::vector<Text>& candidates) const;
  bool can_improve(const Prompt& prompt) const;
  // Whether the search of these prompts is over. `all_end`: every continuation that was looked at
  // ends its text.
  bool is_over(std::span<const std::size_t> prompts, bool all_end) const;

  GenerateOptions options_;
  Company company_;
  Sampler sampler_;
  std::vector<Prompt> prompts_;
  std::vector<std::size_t> searched_;  // those whose search goes on
  std::int64_t length_ = 0;            // new tokens of the open beams
  bool done_ = false;
};

}  // namespace floe::generation
