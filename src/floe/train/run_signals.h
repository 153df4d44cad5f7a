// What the outside asks of a run while it trains. Signal handlers and other threads set it.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

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
  static std::int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
};

}  // namespace floe::train
