// How the shards of a source are dealt, and what a stream gets of them.
#pragma once

#include <cstdint>

#include "floe/starter/data_facts.h"

namespace floe::starter {

struct Deal {
  std::int64_t ranks = 1, workers = 1;
  bool resampled = false;
};

// Usable samples of the source, or tokens where batches count tokens.
double content_of(const DataFacts& facts);

// What one pass of the stream with fewest gives, in samples or tokens. 0: a run could not begin,
// because a stream has no shard, or none with anything to use. Very much where there is no telling.
std::int64_t pass_of_stream(const DataFacts& facts, const Deal& deal);

}  // namespace floe::starter
