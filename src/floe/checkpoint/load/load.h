// From an opened checkpoint into the slices of a run, whatever world size and strategy either had:
// each rank reads the elements that it holds.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "floe/checkpoint/load/saved_state.h"

namespace floe::checkpoint {

struct Loadable {
  bool has_ema = false;
  // What the checkpoint has of each optimizer of the run.
  enum class State {
    missing,  // nothing: it starts anew
    none,     // it had no state: its set had not trained yet, its state was dropped, it keeps none
    saved,
  };
  std::vector<State> optimizers;
  // Of each optimizer that has saved state: trainable groups that start anew all the same, because
  // some parameter of theirs was frozen when the checkpoint was saved.
  std::vector<std::set<std::size_t>> new_groups;

  // The names of the sets whose optimizer is missing.
  std::vector<std::string> anew(const RunState& run) const;
};

// Whether the run can be filled from it. Throws CheckpointError with everything that is missing or
// of another shape, by name. Reads no elements.
Loadable check_fits(const SavedState& saved, const RunState& run);

// Fills weights, optimizer state and averages in place; what check_fits found missing starts anew.
// First makes the set active that trained when it was saved: only then is there room for all that
// it has.
void load(const SavedState& saved, const RunState& run, const Loadable& what);

}  // namespace floe::checkpoint
