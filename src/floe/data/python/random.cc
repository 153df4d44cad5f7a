#include "floe/data/python/random.h"

#include <algorithm>
#include <bit>

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

namespace {

// Python seeds with the 32-bit words of the number, lowest first, without leading zeros.
Mt19937 seeded(std::uint64_t seed) {
  const std::uint32_t words[] = {static_cast<std::uint32_t>(seed),
                                 static_cast<std::uint32_t>(seed >> 32)};
  return Mt19937::from_array({words, words[1] ? std::size_t{2} : std::size_t{1}});
}

}  // namespace

PythonRandom::PythonRandom(std::uint64_t seed) : engine_(seeded(seed)) {}

double PythonRandom::random() {
  const std::uint32_t high = engine_.next() >> 5, low = engine_.next() >> 6;
  return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}

std::uint64_t PythonRandom::bits(int count) {
  require(count >= 1 && count <= 64, "a draw has 1 to 64 bits, not ", count);
  if (count <= 32) return engine_.next() >> (32 - count);
  const std::uint64_t low = engine_.next();
  return low | std::uint64_t{engine_.next() >> (64 - count)} << 32;
}

std::uint64_t PythonRandom::below(std::uint64_t n) {
  require(n >= 1, "nothing can be drawn from an empty range");
  const int count = std::bit_width(n);
  std::uint64_t draw = bits(count);
  while (draw >= n) draw = bits(count);
  return draw;
}

std::int64_t PythonRandom::randint(std::int64_t first, std::int64_t last) {
  require(first <= last, "nothing can be drawn from ", first, " to ", last);
  return first + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(last - first) + 1));
}

float TorchRandom::rand() {
  constexpr std::uint32_t kMask = (1U << 24) - 1;
  return static_cast<float>(engine_.next() & kMask) * (1.0F / (1U << 24));
}

std::int64_t TorchRandom::int64() {
  const std::uint64_t high = engine_.next();
  const std::uint64_t draw = high << 32 | engine_.next();
  return static_cast<std::int64_t>(draw & (~std::uint64_t{0} >> 1));
}

}  // namespace floe::data
