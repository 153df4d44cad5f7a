// Signals as something to read.
#pragma once

#include <csignal>

#include "floe/core/unique_fd.h"

namespace floe::launch {

// For as long as it lives, SIGCHLD and the signals that ask for something are blocked and wait
// here. What nohup and the like ignore stays ignored. With `last` the process ends soon after: once
// a signal has asked for the end, another one (a scheduler tells everybody, some of them twice)
// does not change the exit code any more.
class SignalReader {
 public:
  explicit SignalReader(bool last = false);
  ~SignalReader();
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;

  int fd() const { return fd_.get(); }
  // For processes that are started meanwhile.
  const sigset_t& mask_before() const { return before_; }
  // The next signal that has arrived, or 0.
  int next();

 private:
  sigset_t before_{};
  bool last_, asked_to_end_ = false;
  UniqueFd fd_;
};

}  // namespace floe::launch
