// The rest of an epoch, dealt to other streams than those that began it: a run goes on with another
// number of ranks or workers.
//
// Nothing is lost and nothing comes twice: shards that were not opened go to the new streams whole,
// shards that were being read from the file on at which reading stopped, and samples that waited
// in shuffle buffers one by one. (Documents of a text source that were cut come again as a whole.)
// With resampling there are no shards left to deal; the new streams make other draws.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "floe/data/stream/stream_state.h"

namespace floe::data {

struct EpochRest {
  std::uint64_t epoch = 0;
  std::uint64_t next_pass = 1;     // after the pass over the rest
  std::vector<ShardPart> parts;    // not read yet
  std::vector<SampleRef> samples;  // of shuffle buffers; ordinal is the index of the shard
  Counts counts;
  std::set<std::int64_t> bad_shards;

  // "41 shards, 2 of them from where reading stopped, and 7312 samples of shuffle buffers"
  std::string text() const;
};

// What these streams, all of one run, have not given of their epoch. They may stand in two
// neighbouring epochs (workers take turns); it is the earlier one that goes on.
EpochRest rest_of(std::span<const StreamState> streams);

// The share of stream number `index` of `count`, which has given `batches_of_epoch` batches.
StreamState deal(const EpochRest& rest, const StreamSetup& setup, std::int64_t index,
                 std::int64_t count, std::int64_t batches_of_epoch);

}  // namespace floe::data
