#include "floe/train/run_signals.h"

#include <chrono>

#include "floe/core/error.h"
#include "floe/core/log.h"

namespace floe::train {

namespace {

constexpr std::chrono::milliseconds kLook{200};  // a handler cannot wake anybody

}  // namespace

StopDeadline::StopDeadline(const RunSignals& signals, double grace_s, comm::World& world)
    : signals_(signals), grace_s_(grace_s), world_(world), thread_([this] { watch(); }) {}

StopDeadline::~StopDeadline() {
  reached();
  thread_.join();
}

void StopDeadline::reached() {
  const std::lock_guard lock(mutex_);
  reached_ = true;
  changed_.notify_all();
}

bool StopDeadline::is_over() const { return signals_.since_stop_s() > grace_s_; }

void StopDeadline::watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLook, [this] { return reached_; })) {
    if (!is_over()) continue;
    log::warn("the step under way was not done ", grace_s_,
              " s after the signal to stop (run.stop_grace_s), so it is given up; every rank saves "
              "the state before it");
    given_up_ = true;
    world_.abort();
    return;
  }
}

void StopDeadline::check() const {
  require(!given_up_, "stopped by a signal; the step under way was given up after ", grace_s_,
          " s (run.stop_grace_s)");
}

}  // namespace floe::train
