// Where the launchers of a job meet; see Note [Rounds].
#pragma once

#include <poll.h>

#include <chrono>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "floe/control/connection.h"
#include "floe/core/unique_fd.h"
#include "floe/launch/elastic.h"

namespace floe::launch {

// What a launcher says of itself when it comes.
struct HostHello {
  std::string version, host, command;
  int num_ranks = 1;
  std::string token;  // of the coordinator's own launcher; empty: of another one
};

// Driven by the loop of its own launcher: nothing here waits.
class Coordinator {
 public:
  Coordinator(const ElasticOptions& options, UniqueFd listening, HostHello own);

  void add_polled(std::vector<pollfd>& polled) const;
  // Reads, decides and tells.
  void work();
  // Ends the job on all hosts.
  void finish(int exit_code, const std::string& why);
  // Everything has been sent to everybody.
  bool all_sent() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { gathering, running, finished };

  struct Host {
    explicit Host(UniqueFd socket) : connection(std::move(socket)) {}

    control::Connection connection;
    HostHello hello;
    bool known = false, is_own = false;
    bool broken = false;    // it says what no launcher says
    bool in_round = false;  // has ranks in the round under way, or had until it ended them
    bool ended = false;     // these have ended
    int exit_code = 0;
    std::string cause;
  };

  void accept_new();
  void read_from(Host& host);
  void take(Host& host, const control::Message& message);
  void welcome(Host& host, const control::Message& message);
  void drop_lost();
  void gather();
  void begin_round(const std::vector<Host*>& hosts);
  void watch_round();
  void end_round();
  // `final`: somebody asked for the end, so there is no other round.
  void note_failure(int exit_code, const std::string& cause, bool final = false);
  void tell(Host& host, const control::Message& message) { host.connection.send(message); }
  std::string names_of(const std::vector<Host*>& hosts) const;
  std::vector<Host*> ready_hosts();

  const ElasticOptions& options_;
  UniqueFd listening_;
  const HostHello own_;
  const std::string job_;
  std::list<Host> hosts_;  // in the order in which they came
  Phase phase_ = Phase::gathering;
  Clock::time_point gathering_since_ = Clock::now(), last_came_ = Clock::now();
  int rounds_ = 0, restarts_ = 0;
  // Of the round under way: what went wrong first.
  struct RoundFailure {
    int exit_code = 1;
    std::string cause;
    bool final = false;
    Clock::time_point at;
  };
  std::optional<RoundFailure> failure_;
};

}  // namespace floe::launch
