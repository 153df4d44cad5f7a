// What `floe doctor` looks at.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace floe::cli {

struct Finding {
  enum class State { ok, note, problem };
  State state = State::ok;
  std::string what, found;
  std::string advice;  // what to do; empty when there is nothing to do
};
std::string_view name_of(Finding::State state);

// Versions, devices, backends, libraries, network, limits and environment.
std::vector<Finding> look_at_machine();

// Two ranks of this program on this machine, through the same rendezvous, store and collectives as
// training.
Finding try_two_ranks();
// What each of them does. Collective. Throws when a result is wrong.
void communicate_as_rank();

}  // namespace floe::cli
