// What stands in front of train.py: variables, srun, torchrun, mpirun, python; and the command that
// starts floe's ranks in their place.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "floe/migrate/page.h"

namespace floe::migrate {

struct Launch {
  std::vector<std::string> flags;  // the words behind train.py
  // NAME=VALUE in front, of those that mean something to the ranks.
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::string> words;  // the command, from the launcher up to "train"
  bool own_launcher = false;       // `floe launch` or a single process; else the one that was there
  std::optional<int> world;        // ranks; empty: the scheduler's business
  std::optional<int> per_machine;  // ranks of a machine

  // "A=1 floe launch -n 4 -- train ".
  std::string command() const;
};

// Tells on the page what becomes of each word. Throws ConfigError when there is no train.py in it,
// or a number of ranks is none.
Launch read_launch(const std::vector<std::string>& command, Page& page);

}  // namespace floe::migrate
