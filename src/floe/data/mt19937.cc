#include "floe/data/mt19937.h"

#include <algorithm>

#include "floe/core/error.h"

namespace floe::data {
namespace {

constexpr std::size_t kWords = Mt19937::kNumWords;
constexpr std::size_t kShift = 397;

constexpr std::uint32_t twist(std::uint32_t high, std::uint32_t low) {
  const std::uint32_t mixed = (high & 0x80000000U) | (low & 0x7fffffffU);
  return (mixed >> 1) ^ ((low & 1U) ? 0x9908b0dfU : 0U);
}

}  // namespace

Mt19937::Mt19937(std::uint32_t seed) {
  words_[0] = seed;
  for (std::uint32_t i = 1; i < kWords; ++i)
    words_[i] = 1812433253U * (words_[i - 1] ^ (words_[i - 1] >> 30)) + i;
}

Mt19937 Mt19937::from_array(std::span<const std::uint32_t> key) {
  require(!key.empty(), "a generator cannot be seeded with an empty array");
  Mt19937 engine(19650218U);
  auto& words = engine.words_;
  std::size_t i = 1, j = 0;
  const auto step = [&] {
    if (++i >= kWords) {
      words[0] = words[kWords - 1];
      i = 1;
    }
  };
  for (std::size_t k = std::max(kWords, key.size()); k > 0; --k) {
    words[i] = (words[i] ^ ((words[i - 1] ^ (words[i - 1] >> 30)) * 1664525U)) + key[j] +
               static_cast<std::uint32_t>(j);
    step();
    if (++j >= key.size()) j = 0;
  }
  for (std::size_t k = kWords - 1; k > 0; --k) {
    words[i] = (words[i] ^ ((words[i - 1] ^ (words[i - 1] >> 30)) * 1566083941U)) -
               static_cast<std::uint32_t>(i);
    step();
  }
  words[0] = 0x80000000U;
  return engine;
}

void Mt19937::refill() {
  for (std::size_t i = 0; i < kWords; ++i)
    words_[i] = words_[(i + kShift) % kWords] ^ twist(words_[i], words_[(i + 1) % kWords]);
  position_ = 0;
}

std::uint32_t Mt19937::next() {
  if (position_ >= kWords) refill();
  std::uint32_t x = words_[position_++];
  x ^= x >> 11;
  x ^= (x << 7) & 0x9d2c5680U;
  x ^= (x << 15) & 0xefc60000U;
  return x ^ (x >> 18);
}

std::vector<std::uint32_t> Mt19937::state() const {
  std::vector<std::uint32_t> state(words_.begin(), words_.end());
  state.push_back(position_);
  return state;
}

void Mt19937::set_state(std::span<const std::uint32_t> state) {
  require<DataError>(state.size() == kWords + 1 && state.back() <= kWords,
                     "the state of a generator must have ", kWords + 1,
                     " numbers of which the last is at most ", kWords, ", found ", state.size());
  std::copy_n(state.begin(), kWords, words_.begin());
  position_ = state.back();
}

}  // namespace floe::data
