// Drawing tokens, with numbers that are a function of (seed, stream, step): a draw is the same on
// every machine and does not depend on what else was drawn.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace floe::models {

class Sampler {
 public:
  explicit Sampler(std::uint64_t seed) : seed_(seed) {}

  // `count` different places of `log_weights`, drawn one after the other without putting back, each
  // with a chance in proportion to exp(log_weight); in the order drawn. Weights need no norm; places
  // of weight -inf come last, when nothing else is left.
  std::vector<std::int64_t> draw(std::span<const float> log_weights, std::size_t count,
                                 std::uint64_t stream, std::uint64_t step) const;

 private:
  std::uint64_t seed_;
};

}  // namespace floe::models
