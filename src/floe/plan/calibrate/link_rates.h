// What collectives reach between ranks.
#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "floe/comm/world.h"

namespace floe::plan {

// Of a group of ranks.
struct LinkRates {
  int ranks = 1;
  double gbs = 0;         // that reach a rank, in one direction, in a large all-gather
  double us = 0;          // from one rank to the next, by a small one
  double reduce_gbs = 0;  // of what a reduce-scatter takes beyond the all-gather
  double cores = 0;       // of a rank on the CPU that are busy meanwhile
};

struct Links {
  int ranks_per_node = 1, nodes = 1;
  bool uneven = false;  // nodes with different numbers of ranks: nothing was measured
  std::optional<LinkRates> inside, between;
};

// Collective: all ranks of the world.
Links measure_links(comm::World& world, int rounds);

}  // namespace floe::plan
