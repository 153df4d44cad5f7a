// How long something took, by the monotonic clock.
//
//   const Stopwatch watch;
//   save();
//   log::info("saved in ", watch.seconds(), " s");
#pragma once

#include <chrono>
#include <utility>

namespace floe {

class Stopwatch {
 public:
  // Since the beginning, or the last lap.
  double seconds() const { return in_seconds(Clock::now() - begin_); }
  // The same, and begins again.
  double lap() {
    const Clock::time_point now = Clock::now();
    return in_seconds(now - std::exchange(begin_, now));
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double in_seconds(Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  }

  Clock::time_point begin_ = Clock::now();
};

}  // namespace floe
