// Where the time of a run goes. Every moment belongs to exactly one part, so that the parts add up
// to the wall clock.
//
//   TimeAccount time;
//   read_batches();  time.lap(TimeAccount::data);     // since the last lap: spent on data
//   compute();       time.lap(TimeAccount::compute);
//   record.times = time.take();                       // since the last take
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "floe/core/stopwatch.h"

namespace floe::train {

class TimeAccount {
 public:
  enum Part : std::size_t {
    setup,    // before the first step
    data,     // waiting for batches
    compute,  // forward, backward, agreement and update of steps that were made
    skipped,  // everything of steps that were skipped
    validation,
    save_wait,  // until the save before was on disk
    saving,     // copying, and where saves are not asynchronous writing
    phase_switch,
    other,  // logs, diagnostics
    kNumParts,
  };

  struct Times {
    std::array<double, kNumParts> seconds{};

    double of(Part part) const { return seconds[part]; }
    double wall() const;
    // A step as people time it: with the wait for its data.
    double step() const { return of(data) + of(compute); }
    Times& operator+=(const Times& more);
    // "62.1 s: data 0.3, steps 58.0, saving 3.1, other 0.7"
    std::string text() const;
  };

  // The time since the last lap belongs to the part. Returns it.
  double lap(Part part);
  // What was counted as one part is of another.
  void move(Part from, Part to, double seconds);
  // Since the last take.
  Times take();
  // Since the beginning, what was not taken included.
  Times total() const;

 private:
  Stopwatch watch_;
  Times now_, taken_;
};

}  // namespace floe::train
