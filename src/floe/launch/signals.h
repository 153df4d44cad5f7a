// Signals as something to read.
#pragma once

#include <csignal>

#include "floe/core/unique_fd.h"

namespace floe::launch {

// For as long as it lives, SIGCHLD and the signals that ask for something are blocked and wait
// here. What nohup and the like ignore stays ignored.
class SignalReader {
 public:
  SignalReader();
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
  UniqueFd fd_;
};

}  // namespace floe::launch
