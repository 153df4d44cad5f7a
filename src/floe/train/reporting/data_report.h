// What the ranks of a run have to say about their data together: through the world's store, apart
// from the collectives of training.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "floe/comm/world.h"
#include "floe/data/loader/loader.h"

namespace floe::train {

using SourceCounts = std::vector<std::pair<std::string, data::Counts>>;

// Collective: the counts of all ranks, which have the same sources.
SourceCounts sum_over_ranks(const SourceCounts& own, comm::World& world);

// Collective: a line per source, of all ranks.
std::string data_report(const data::Loader& loader, comm::World& world);

// Collective: says it when ranks have the same prepared batches under names of their own.
void warn_of_same_batches(const data::Loader& loader, comm::World& world, const std::string& key);

}  // namespace floe::train
