// What the engine does, as it does it: for diagnostics, tests and traces.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string_view>

#include "floe/shard/states.h"

namespace floe::shard {

struct Event {
  enum class Kind {
    gather,          // an all-gather was issued
    prefetch,        // the same, ahead of use
    begin_wait,      // the computation needs a gather or a reduction now
    wait,            // it waited for it; see `seconds`
    release,         // gathered memory went back to the pool
    keep,            // a unit stays gathered from its forward to its backward
    reduce,          // a reduce-scatter (or, without slices, an all-reduce) was issued
    replicate,       // an all-reduce over copies was issued (hybrid)
    agree,           // the one small all-reduce of a step
    begin_forward,   // of a unit, before it is gathered; in phase backward: runs again
    end_forward,     // it has computed and is released, unless kept
    begin_backward,  // of a unit, before what its backward reads is gathered
    end_backward,    // the gradients of its inputs are complete
  };
  Kind kind = Kind::gather;
  PassPhase phase = PassPhase::idle;
  std::string_view unit;                               // empty for reductions
  std::string_view group;                              // empty for forward and backward
  std::int64_t bytes = 0;                              // of the tensor that the collective works on
  double seconds = 0;                                  // of the host
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of the collective's tensors
};

constexpr const char* name_of(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::gather: return "gather";
    case Event::Kind::prefetch: return "prefetch";
    case Event::Kind::begin_wait: return "begin wait";
    case Event::Kind::wait: return "wait";
    case Event::Kind::release: return "release";
    case Event::Kind::keep: return "keep";
    case Event::Kind::reduce: return "reduce";
    case Event::Kind::replicate: return "replicate";
    case Event::Kind::agree: return "agree";
    case Event::Kind::begin_forward: return "begin forward";
    case Event::Kind::end_forward: return "end forward";
    case Event::Kind::begin_backward: return "begin backward";
    case Event::Kind::end_backward: return "end backward";
  }
  return "?";
}

// Called on the thread that runs the model; must not call back into the engine, except to read
// Engine::memory and to reset its peaks.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on(const Event& event) = 0;
  // Whether it only counts: then it can be told of a pass whose device work is replayed
  // (Engine::repeat_pass). An observer of clocks or memory needs passes that really run,
  // and gets them.
  virtual bool only_counts() const { return false; }
};

}  // namespace floe::shard
