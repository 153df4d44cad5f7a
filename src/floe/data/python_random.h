// Python's `random.Random(seed)`, number for number: the draws that decide OpenFlamingo's shard
// orders and single-image coins.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "floe/data/mt19937.h"

namespace floe::data {

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

}  // namespace floe::data
