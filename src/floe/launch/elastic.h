// A job on several hosts that is started again when a rank or a host is lost.
//
// Note [Rounds]
// Every host runs one launcher with the same command. They meet at the launcher of one of them, the
// coordinator, which is always part of the job: with it the job ends. As soon as enough hosts are
// there it begins a round: every launcher is told which ranks it has, and starts them. When a rank
// fails, or a launcher is gone (its connection ends, or is silent for control::kSilence), the
// others end their ranks, and a new round begins with the hosts that are there then: fewer, or
// others that have come meanwhile. What was trained since the last checkpoint is trained again. The
// ranks of a round have a job of their own, so that none of an earlier round can join them.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "floe/control/socket.h"
#include "floe/launch/launch.h"

namespace floe::launch {

struct ElasticOptions {
  LaunchOptions ranks;  // of this host
  int min_hosts = 1, max_hosts = 1;
  int max_restarts = 0;
  std::optional<control::Address> rendezvous;  // none: this host is the only one
  // For so many hosts to come; and from the last one that came to the start, while more may come.
  std::chrono::milliseconds host_wait{600'000}, last_call{5'000};
};

struct ElasticResult {
  int exit_code = 0;
  std::string why;  // in one sentence; empty when all is well
};

// Blocks until the job has ended on this host. See launch() for signals. Throws ConfigError when
// the program cannot be started, or the others do not know this launcher; CommError when the
// hosts cannot meet.
ElasticResult launch_elastic(const ElasticOptions& options);

}  // namespace floe::launch
