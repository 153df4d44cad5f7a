// One launched process with pipes on its stdout and stderr.
#pragma once

#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "floe/comm/launch.h"

namespace floe::comm {

// A file descriptor that closes itself.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

struct Pipe {
  UniqueFd read, write;
};
// Both ends are closed in programs that are started.
Pipe make_pipe();

// Leads a process group of its own. The kernel kills it when the thread that started it ends.
class ChildProcess {
 public:
  // Throws ConfigError when the program cannot be run. `signals` is the signal mask it starts with.
  ChildProcess(const std::vector<std::string>& command, const std::vector<std::string>& environment,
               const sigset_t& signals);
  ChildProcess(ChildProcess&&) noexcept = default;

  bool running() const { return running_; }
  // Sends a signal to the whole process group; does nothing once the process has ended.
  void signal(int number) const;
  // True when the process has ended since the last call; then `end` says how and what was left of
  // its process group has been killed.
  bool poll_end();
  const RankEnd& end() const { return end_; }

  // Readable without blocking.
  UniqueFd out, err;

 private:
  pid_t pid_ = -1;
  bool running_ = true;
  RankEnd end_;
};

}  // namespace floe::comm
