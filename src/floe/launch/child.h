// One launched process, and how its output is passed on.
#pragma once

#include <csignal>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/core/unique_fd.h"
#include "floe/launch/launch.h"

namespace floe::launch {

// Passes a rank's output on. Lines of several ranks never mix inside a line: only complete lines
// are written, each with the prefix in front. A line that never ends is cut after 64 KiB.
class LineForwarder {
 public:
  // Writes to the descriptor `to`, which stays the caller's; remembers the last `num_kept` lines.
  LineForwarder(int to, std::string prefix, std::size_t num_kept);

  void feed(std::string_view bytes);
  // Writes an unfinished last line; call it when no more will come.
  void finish();

  const std::deque<std::string>& last_lines() const { return kept_; }
  // Whether something could not be written although somebody wants it: the disk is full, say.
  bool has_lost() const { return has_lost_; }

 private:
  void add_line(std::string_view line);
  void write_out();

  int to_;
  std::string prefix_;
  std::size_t num_kept_;
  std::string unfinished_;
  std::string out_;
  std::deque<std::string> kept_;
  bool has_lost_ = false;
};

struct Pipe {
  UniqueFd read, write;
};
// Both ends are closed in programs that are started.
Pipe make_pipe();

// One launched process with pipes on its stdout and stderr. Leads a process group of its own. The
// kernel kills it when the thread that started it ends.
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

}  // namespace floe::launch
