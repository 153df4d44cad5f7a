#include "floe/models/sampling.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/philox.h"

namespace floe::models {
namespace {

// In (0, 1), never an end.
double uniform(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(high) << 32 | low) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1p-53;
}

}  // namespace

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

}  // namespace floe::models
