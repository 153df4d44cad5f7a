// Which worker reads which shards in which order, and how many batches an epoch has: exactly as
// OpenFlamingo's loaders. Everything is a function of seeds and positions, nothing of time.
//
// A "worker" is a logical stream of samples: part of the order, whatever thread reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "floe/data/python/random.h"
#include "floe/data/sample.h"

namespace floe::data {

// One of the streams that read a data set.
struct StreamPlace {
  std::int64_t rank = 0, world_size = 1;
  std::int64_t worker = 0, num_workers = 1;
};

// The shards (as indices into the list of `num_shards`) that this stream reads in one pass of the
// epoch, without resampling: the list through a buffer shuffle seeded with seed + epoch, every
// world_size-th from `rank`, of those every num_workers-th from `worker`. May be empty.
// A stream that needs more samples than its shards have makes another pass. With the reference's
// rules every pass has the same order; with corrected rules pass p > 0 goes through the same shards
// of this stream in an order of its own.
std::vector<std::int64_t> shard_order(std::int64_t num_shards, std::uint64_t seed,
                                      std::uint64_t epoch, const StreamPlace& place,
                                      Rules rules = Rules::openflamingo, std::uint64_t pass = 0);

// With resampling: shards drawn with replacement, for ever, by each stream on its own.
class ResampledShards {
 public:
  ResampledShards(std::int64_t num_shards, std::uint64_t worker_seed, std::uint64_t epoch,
                  std::int64_t num_workers);
  std::int64_t next();

  PythonRandom& random() { return random_; }  // to save and set its state

 private:
  std::uint64_t num_shards_;
  PythonRandom random_;
};

// The base seeds of a rank's loaders in the order in which they are made (LAION first, MMC4
// second), drawn once per run from torch's generator seeded with seed + rank.
std::vector<std::uint64_t> loader_base_seeds(std::uint64_t seed, std::int64_t rank,
                                             std::size_t num_loaders);
// The seed of a worker's own generators: base seed + worker.
inline std::uint64_t worker_seed(std::uint64_t base_seed, std::int64_t worker) {
  return base_seed + static_cast<std::uint64_t>(worker);
}

// How much one epoch reads. The reference rounds up; with `floor` incomplete rounds are left out.
struct EpochSize {
  std::int64_t batches_per_worker = 0;
  std::int64_t batches = 0;  // of one rank: batches_per_worker * workers
  std::int64_t samples = 0;  // of all ranks: batches * batch_size * world_size
};
EpochSize epoch_size(std::int64_t num_samples, std::int64_t batch_size, std::int64_t world_size,
                     std::int64_t num_workers, bool floor = false);

}  // namespace floe::data
