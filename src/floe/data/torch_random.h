// torch's CPU generator after manual_seed(seed), number for number: loader base seeds and flips.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "floe/data/mt19937.h"

namespace floe::data {

class TorchRandom {
 public:
  // As torch.manual_seed(seed); the engine sees the low 32 bits.
  explicit TorchRandom(std::uint64_t seed) : engine_(static_cast<std::uint32_t>(seed)) {}

  // torch.rand(1) in float32: uniform in [0, 1), 24 bits.
  float rand();
  // torch.empty((), dtype=torch.int64).random_(): 63 bits; what a DataLoader draws as its base seed.
  std::int64_t int64();

  // For checkpoints.
  std::vector<std::uint32_t> state() const { return engine_.state(); }
  void set_state(std::span<const std::uint32_t> state) { engine_.set_state(state); }

 private:
  Mt19937 engine_;
};

}  // namespace floe::data
