// The end of the time in which a run that was asked to stop has to come to its save
// (run.stop_grace_s). After it whoever stopped the run (SLURM, a launcher) kills it, so the step under
// way is given up: its collectives fail, and each rank saves the state before it without the others.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "floe/comm/world.h"
#include "floe/train/run_signals.h"

namespace floe::train {

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
