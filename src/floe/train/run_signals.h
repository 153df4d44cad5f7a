// What the outside asks of a run while it trains. Signal handlers and other threads set it.
#pragma once

#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "floe/comm/world.h"

namespace floe::train {

struct RunSignals {
  std::atomic<bool> stop{false};         // end after the step under way, with a checkpoint
  std::atomic<bool> save{false};         // save after the step under way, and go on
  std::atomic<std::int64_t> stop_ns{0};  // of the monotonic clock: when the stop was asked for

  // Safe in a signal handler.
  void ask_to_stop() {
    if (stop) return;
    stop_ns = now_ns();
    stop = true;
  }
  // Seconds since then; 0 where this process was not asked.
  double since_stop_s() const { return stop ? static_cast<double>(now_ns() - stop_ns) * 1e-9 : 0; }
  static std::int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
};

// The end of the time in which a run that was asked to stop has to come to its save
// (run.stop_grace_s). After it whoever stopped the run (SLURM, a launcher) kills it, so the
// step under way is given up: its collectives fail, and each rank saves the state before it
// without the others.
class StopDeadline {
 public:
  StopDeadline(const RunSignals& signals, double grace_s, comm::World& world);
  ~StopDeadline();
  StopDeadline(const StopDeadline&) = delete;
  StopDeadline& operator=(const StopDeadline&) = delete;

  // The save has begun, or all is done: nothing is given up any more.
  void reached();
  // Throws Error once the step is given up. For places where no collective would fail.
  void check() const;

 private:
  void watch();
  bool is_over() const;

  const RunSignals& signals_;
  const double grace_s_;
  comm::World& world_;
  std::atomic<bool> given_up_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  std::thread thread_;
};

}  // namespace floe::train
