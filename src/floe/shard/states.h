// What the engine is in the middle of: of a pass, of a group, of a group's gradient. Every value of
// the last two says which memory is held.
#pragma once

namespace floe::shard {

// Where a pass through the model stands.
enum class PassPhase {
  idle,      // between passes
  forward,   // some unit's forward has begun, and no backward has
  backward,  // with the forwards that run again inside it
};

// Of a group's parameters. A rank always holds its slice; what it holds besides:
enum class GroupState {
  // Nothing; the parameters cannot be read.
  sliced,
  // A buffer of the parameter pool, which an all-gather fills: the parameters lie in it, but may
  // not be read yet. In 8 bits a second buffer, for the codes as they arrive.
  gathering,
  // The buffer; the parameters can be read.
  gathered,
  // Nothing: the slice is the whole, and the parameters are views of it, always.
  in_place,
};

constexpr const char* name_of(GroupState state) {
  switch (state) {
    case GroupState::sliced: return "sliced";
    case GroupState::gathering: return "being gathered";
    case GroupState::gathered: return "gathered";
    case GroupState::in_place: return "in place";
  }
  return "?";
}

// sliced -> gathering -> gathered -> sliced. A gather that fails or that nobody uses goes back at
// once; between sliced and in place a group changes with what its set stores (Engine::activate).
constexpr bool may_follow(GroupState before, GroupState after) {
  switch (before) {
    case GroupState::sliced: return after != GroupState::gathered;
    case GroupState::gathering: return after == GroupState::gathered || after == GroupState::sliced;
    case GroupState::gathered: return after == GroupState::sliced;
    case GroupState::in_place: return after == GroupState::in_place || after == GroupState::sliced;
  }
  return false;
}

// Of the gradient of a group that trains. "The slice" is this rank's slice of the reduced gradient,
// in the dtype and on the device of the group's own slice; "the buffer" is as large as the whole
// group, in the dtype of the reduction.
enum class GradientState {
  // Nothing has arrived. Holds nothing, or, where gradients stay in place
  // (Engine::keep_gradients_in_place), the memory of the slice.
  none,
  // Gradients of parameters move into the buffer, in one backward or, without gradient sync, over
  // several. Holds the buffer (of the gradient pool, or a tensor of autograd's that was taken over,
  // or, where nothing is sliced and dtypes agree, the slice itself), and the slice, if something
  // has been reduced into it before.
  collecting,
  // A reduction is under way, or has failed. Holds the buffer, the reduction's result and the slice
  // as before; the first result is the slice, where dtypes agree.
  reducing,
  // All that has arrived is in the slice. Holds only that.
  reduced,
  // The same, but summed over the ranks that slice the group and not yet over those that hold
  // copies of the slice, which come in with the last pass of an update (Note [Accumulation]).
  partial,
  // All that has arrived is in the slice, which is the buffer, and there is nothing to reduce: on
  // one rank alone, or, where nothing is sliced, before the last pass of an update. What arrives
  // next is added in place. Holds only the slice.
  local,
};

constexpr const char* name_of(GradientState state) {
  switch (state) {
    case GradientState::none: return "missing";
    case GradientState::collecting: return "being collected";
    case GradientState::reducing: return "being reduced";
    case GradientState::reduced: return "reduced";
    case GradientState::partial: return "reduced in part";
    case GradientState::local: return "local";
  }
  return "?";
}

// none -> collecting -> reducing -> reduced or partial, or collecting -> local, and from all three
// to collecting again, from the last two also to reducing; from everywhere to none. A repeated pass
// (Engine::repeat_pass) goes from none to its end at once.
constexpr bool may_follow(GradientState before, GradientState after) {
  if (after == GradientState::none) return true;
  switch (before) {
    case GradientState::none: return after != GradientState::reducing;
    case GradientState::collecting:
      return after != GradientState::reduced && after != GradientState::partial;
    case GradientState::reducing:
      return after == GradientState::reduced || after == GradientState::partial;
    case GradientState::reduced: return after == GradientState::collecting;
    case GradientState::partial:
    case GradientState::local:
      return after == GradientState::collecting || after == GradientState::reducing;
  }
  return false;
}

}  // namespace floe::shard
