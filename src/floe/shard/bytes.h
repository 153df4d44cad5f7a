// What sharding costs a rank, by the closed formula of docs/engine.md: computed from the plan,
// before anything runs.
#pragma once

#include <cstdint>

namespace floe::shard {

// Bytes that one rank holds between steps, and at most during one.
struct HeldBytes {
  std::int64_t trainable_slices = 0;  // fp32 masters of the active set
  std::int64_t resting_slices = 0;    // of sets that do not train now
  std::int64_t frozen_slices = 0;     // sliced or resident
  std::int64_t gradient_slices = 0;
  std::int64_t optimizer_state = 0;   // AdamW: two fp32 moments, of the active set
  std::int64_t resting_state = 0;     // ... of sets that keep theirs while they rest
  std::int64_t pool = 0;              // gathered parameters: neighbours and what is around them
  std::int64_t gradient_buffers = 0;  // unsharded gradients: one filling, one being reduced
  std::int64_t between_steps() const {
    return trainable_slices + resting_slices + frozen_slices + optimizer_state + resting_state;
  }
  std::int64_t peak() const { return between_steps() + gradient_slices + pool + gradient_buffers; }
};

// What one rank takes part in per update: a forward and backward, or several (see docs/engine.md
// for the formula).
struct MovedBytes {
  std::int64_t gathers = 0, gathered = 0;
  std::int64_t reduce_scatters = 0, reduce_scattered = 0;
  std::int64_t all_reduces = 0, all_reduced = 0;
};

}  // namespace floe::shard
