// The ranks of this machine, from their start to the end of the last one; see launch().
#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "floe/launch/child.h"
#include "floe/launch/launch.h"
#include "floe/launch/signals.h"

namespace floe::launch {

// What else is to be looked after while ranks run.
class Companion {
 public:
  virtual ~Companion() = default;
  // What it waits for.
  virtual void add_polled(std::vector<pollfd>& polled) const = 0;
  // Does what there is to do. Returns why the ranks are to end; empty: they are not.
  virtual std::string work() = 0;
};

class Launcher {
 public:
  // `companion` may be null. All live longer than this.
  Launcher(const LaunchOptions& options, SignalReader& signals, Companion* companion)
      : options_(options), signals_(signals), companion_(companion) {}
  // Only after an exception are there still ranks.
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  LaunchResult run();

 private:
  using Clock = std::chrono::steady_clock;

  // One rank: its process and where its output goes.
  struct Rank {
    Rank(ChildProcess started, const std::string& prefix);

    ChildProcess process;
    LineForwarder out, err;

    // Passes on what has arrived. Closes a stream at its end.
    void forward();
  };

  void start();
  bool any_running() const;
  void signal_all(int number);
  // The number that the job knows it by.
  int number_of(std::size_t rank) const { return first_rank() + static_cast<int>(rank); }
  int first_rank() const { return options_.place ? options_.place->first_rank : 0; }
  std::string running_ranks() const;
  // Sleeps until output, a signal or the timeout.
  void wait_for_news(int timeout_ms);
  int until_deadline() const;
  void handle(int number);
  // A person's Ctrl-C: the first one asks the ranks, the second one ends those that do not react.
  void interrupt();
  void terminate(std::chrono::milliseconds until_kill);
  void reap();
  void meet_deadlines();
  // The rest of the output. A process that left its group may hold a pipe open: that is not
  // waited for.
  void drain();
  // Of the ranks that failed, the first one that does not itself name another one as the cause.
  std::optional<int> cause() const;
  LaunchResult result() const;

  const LaunchOptions& options_;
  SignalReader& signals_;
  Companion* companion_;
  std::vector<Rank> ranks_;
  std::optional<int> first_failure_;
  std::vector<int> failed_;  // in the order of their ends
  std::string why_end_;      // what the companion said
  std::optional<Clock::time_point> terminate_at_, kill_at_;
  std::optional<int> stop_signal_;
  int interrupts_ = 0, stops_ = 0;
};

}  // namespace floe::launch
