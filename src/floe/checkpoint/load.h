// From an opened checkpoint into the slices of a run, whatever world size and strategy either had:
// each rank reads the elements that it holds.
#pragma once

#include "floe/checkpoint/saved_state.h"

namespace floe::checkpoint {

struct Loadable {
  bool has_optimizer = false, has_ema = false;
};

// Whether the run can be filled from it. Throws CheckpointError with everything that is missing or of
// another shape, by name. Reads no elements.
Loadable check_fits(const SavedState& saved, const RunState& run);

// Fills weights, optimizer state and averages in place; what check_fits found missing starts anew.
void load(const SavedState& saved, const RunState& run, const Loadable& what);

}  // namespace floe::checkpoint
