// What the engine does, as it does it: for diagnostics, tests and traces.
#pragma once

#include <cstdint>
#include <string_view>

namespace floe::shard {

enum class Phase { idle, forward, backward };

struct Event {
  enum class Kind {
    gather,     // an all-gather was issued
    prefetch,   // the same, ahead of use
    wait,       // the computation waited for a gather or a reduction; see `seconds`
    release,    // gathered memory went back to the pool
    keep,       // a unit stays gathered from its forward to its backward
    reduce,     // a reduce-scatter (or, without slices, an all-reduce) was issued
    replicate,  // an all-reduce over copies was issued (hybrid)
    agree,      // the one small all-reduce of a step
  };
  Kind kind = Kind::gather;
  Phase phase = Phase::idle;
  std::string_view unit, group;
  std::int64_t bytes = 0;
  double seconds = 0;
};

// Called on the thread that runs the model; must not call back into the engine.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on(const Event& event) = 0;
};

const char* name_of(Event::Kind kind);

}  // namespace floe::shard
