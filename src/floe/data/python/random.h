// The Mersenne Twister MT19937 (M. Matsumoto, T. Nishimura, 1998), the engine below Python's
// `random` and torch's CPU generator. Its whole state can be saved and set, so that a run can go on
// where another stopped.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace floe::data {

class Mt19937 {
 public:
  static constexpr std::size_t kNumWords = 624;

  explicit Mt19937(std::uint32_t seed = 5489);
  // "Initialisation by array" of the authors' 2002 version; `key` must not be empty.
  static Mt19937 from_array(std::span<const std::uint32_t> key);

  std::uint32_t next();

  // The words of the state and, last, the position in them: 625 numbers.
  std::vector<std::uint32_t> state() const;
  // Throws DataError for anything that state() cannot have given.
  void set_state(std::span<const std::uint32_t> state);

 private:
  void refill();

  std::array<std::uint32_t, kNumWords> words_;
  std::uint32_t position_ = kNumWords;
};

// Python's `random.Random(seed)`, number for number: the draws that decide OpenFlamingo's shard
// orders and single-image coins.

class PythonRandom {
 public:
  // As random.Random(seed) for an int seed from 0 to 2^64 - 1.
  explicit PythonRandom(std::uint64_t seed);

  // random(): uniform in [0, 1), 53 bits.
  double random();
  // getrandbits(count), count from 1 to 64.
  std::uint64_t bits(int count);
  // randrange(n), and the index that choice() takes from n items; n must be at least 1. Draws
  // n.bit_length() bits until they are below n.
  std::uint64_t below(std::uint64_t n);
  // randint(first, last), both ends included.
  std::int64_t randint(std::int64_t first, std::int64_t last);

  // shuffle(items)
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

  // For checkpoints: 625 numbers, as random.getstate()[1].
  std::vector<std::uint32_t> state() const { return engine_.state(); }
  void set_state(std::span<const std::uint32_t> state) { engine_.set_state(state); }

 private:
  Mt19937 engine_;
};

// torch's CPU generator after manual_seed(seed), number for number: loader base seeds and flips.

class TorchRandom {
 public:
  // As torch.manual_seed(seed); the engine sees the low 32 bits.
  explicit TorchRandom(std::uint64_t seed) : engine_(static_cast<std::uint32_t>(seed)) {}

  // torch.rand(1) in float32: uniform in [0, 1), 24 bits.
  float rand();
  // torch.empty((), dtype=torch.int64).random_(): 63 bits; what a DataLoader draws as
  // its base seed.
  std::int64_t int64();

  // For checkpoints.
  std::vector<std::uint32_t> state() const { return engine_.state(); }
  void set_state(std::span<const std::uint32_t> state) { engine_.set_state(state); }

 private:
  Mt19937 engine_;
};

}  // namespace floe::data
