// A training pass whose work on the device is repeated.
#pragma once

#include <vector>

#include "floe/shard/observer.h"
#include "floe/shard/pass/collective_hash.h"
#include "floe/shard/pass/schedule.h"
#include "floe/shard/states.h"

namespace floe::shard {

// What a training pass leaves behind on the host.
//
// Note [Repeated passes]
// The device's work of a pass can be recorded (a CUDA graph) and replayed: the same launches on the
// same addresses. The host's part does not run then, so what it would have left behind is put there
// from a record: the hash of collectives, which ranks compare; the order of units, which predicts
// the next pass; which gradients there are; and the events, for observers that only count. A record
// fits when the engine stands where it stood before the recorded pass (Engine::pass_key) and the
// layout is still the same (Engine::layout_number). Gradient slices must lie where they lay
// (Engine::keep_gradients_in_place); everything else that a pass allocates is gone at its end.
struct PassRecord {
  std::vector<CollectiveHash::Entry> collectives;
  std::vector<Step> steps;
  std::vector<GradientState> gradients;  // of the active groups
  std::vector<Event> events;
};

}  // namespace floe::shard
