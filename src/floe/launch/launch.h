// Starts N ranks of a program on this machine and stays until all of them have ended; what
// `floe launch` does. Needs no torch.
//
// Note [Ends of ranks]
// When a rank fails, its peers normally fail by themselves at once, because a collective lost its
// partner. Those that do not get SIGTERM after a grace period and SIGKILL some seconds later. The
// rank that failed first is the cause and is the one that is reported. No process outlives the
// launcher: each rank leads a process group, what is left of the group is killed when the rank
// ends, and the kernel kills the rank when the launcher dies.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace floe::launch {

// In the environment of the ranks: the seconds that SIGTERM leaves them.
constexpr const char* kGraceVariable = "FLOE_LAUNCH_GRACE_S";
// How often the job has been started again.
constexpr const char* kRestartsVariable = "FLOE_RESTARTS";
// What names the job, however often it has been started again.
constexpr const char* kLaunchVariable = "FLOE_LAUNCH";

struct LaunchOptions {
  std::vector<std::string> command;  // the program, looked up in PATH, and its arguments
  int num_ranks = 1;
  std::chrono::milliseconds grace{30'000};      // from the first failure to SIGTERM
  std::chrono::milliseconds kill_after{5'000};  // from SIGTERM to SIGKILL
  bool prefix = true;                           // "[rank] " in front of each line of output
  bool last = false;                            // the process ends soon after; see SignalReader
  std::vector<std::pair<std::string, std::string>> environment;  // for every rank; wins

  // Of a job on several hosts: which of its ranks are on this one, and where they meet.
  struct Place {
    int first_rank = 0, world_size = 1;
    std::string master_host;
    int master_port = 0;
    std::string job;
    int restarts = 0;
  };
  std::optional<Place> place;  // none: the ranks of this host are all
};

// How one rank ended.
struct RankEnd {
  int exit_code = 0;
  int signal = 0;  // the signal that ended it, or 0

  bool failed() const { return exit_code != 0 || signal != 0; }
  // As a shell reports it: the exit code, or 128 + signal.
  int status() const { return signal ? 128 + signal : exit_code; }
};

struct LaunchResult {
  std::vector<RankEnd> ranks;            // of this host
  int first_rank = 0, world_size = 0;    // its first one among all; 0: there are no others
  std::optional<int> stop_signal;        // that asked for an end, the last one of several
  std::optional<int> first_failure;      // the rank that failed first
  std::vector<std::string> last_stderr;  // its last lines
  bool has_lost_output = false;          // not all that ranks printed could be written to stdout

  int exit_code() const { return first_failure ? ranks[*first_failure].status() : 0; }
};

// Blocks until every rank has ended. Output of the ranks goes to this process's stdout and stderr,
// line by line; their stdin is empty. SIGINT, SIGUSR1 and SIGUSR2 are passed on; SIGTERM and SIGHUP
// as SIGTERM, with SIGKILL after the grace period, and repeats of these change nothing. A second
// SIGINT ends ranks that do not react. Call it from the main thread, while no other thread runs.
// Throws ConfigError if the program cannot be started.
LaunchResult launch(const LaunchOptions& options);

// The first failure in one sentence; empty when all is well.
std::string describe_failure(const LaunchResult& result);

// "SIGKILL", or "signal 40" for one that has no name.
std::string signal_name(int signal);

}  // namespace floe::launch
