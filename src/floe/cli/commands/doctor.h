// What floe doctor finds, on one machine and over the ranks of a job.
#pragma once

#include <string>
#include <vector>

#include "floe/comm/rendezvous.h"

namespace floe::cli {

struct Finding {
  enum class State { ok, note, problem };
  State state = State::ok;
  std::string what, found;
  std::string advice;  // what to do; empty when there is nothing to do
};

// This machine, as one rank sees it.
std::vector<Finding> look_at_machine();

// Collective: what all ranks of the job find together; complete on rank 0. `folder`: where they are
// to write; empty: nowhere. Throws CommError when the ranks do not meet.
std::vector<Finding> look_at_ranks(const comm::Rendezvous& place, const std::string& folder);

}  // namespace floe::cli
