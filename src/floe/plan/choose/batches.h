// What batches a run has: the largest that its configuration allows, and those of its own data.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "floe/data/data_config.h"
#include "floe/data/stream/counts.h"
#include "floe/models/build.h"
#include "floe/plan/step/step.h"

namespace floe::plan {

// Of which data, for which rank of how many.
struct DataOfRun {
  const DataConfig& data;
  const models::BuiltModel& built;  // whose tokenizer reads it
  bool packed = true;               // all sources in one pass; else each has its own
  std::uint64_t seed = 0;
  int rank = 0, world_size = 1;
};

// One pass after the other that a rank makes with a batch of the loader: one, or one per source.
using Passes = std::vector<BatchParts>;

struct DataSample {
  std::vector<Passes> batches;                               // in the order of the loader
  std::vector<std::pair<std::string, data::Counts>> counts;  // by source; none of prepared batches
};

// As many passes as a step has.
int num_passes(const DataOfRun& of);

// Every source with as many samples as a batch has, each of the most tokens and images that its
// rules allow. Of prepared batches the largest of the first 256.
Passes largest_passes(const DataOfRun& of);

// The first batches that the rank would train on, read by its loader; fewer where an epoch has
// fewer. Throws ConfigError or DataError for data that cannot be read.
DataSample read_sample(const DataOfRun& of, std::int64_t num_batches);

}  // namespace floe::plan
