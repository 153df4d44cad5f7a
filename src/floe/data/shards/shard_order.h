// Which worker reads which shards in which order, and how many batches an epoch has: exactly as
// OpenFlamingo's loaders. Everything is a function of seeds and positions, nothing of time.
//
// A "worker" is a logical stream of samples: part of the order, whatever thread reads it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "floe/data/python/random.h"
#include "floe/data/sample.h"

namespace floe::data {

// WebDataset's buffer shuffle: mixes a stream of any length in bounded memory.
//
//   BufferShuffle<int> shuffle(2000, 500);
//   while (auto item = shuffle.next([&] { return source.next(); }, random)) use(*item);

template <class T>
class BufferShuffle {
 public:
  // Holds up to `size` items and gives the first when it holds min(initial, size).
  BufferShuffle(std::size_t size, std::size_t initial)
      : size_(size), initial_(std::min(initial, size)) {}

  // The next item; nullopt when the source has ended and nothing is left. `pull` returns
  // std::optional<T>, nullopt at the end, and is not called again after that.
  // One step takes one item, a second one while the buffer is below its size, and then gives one:
  // index randint(0, n - 1), the last item moves into the hole.
  template <class Pull>
  std::optional<T> next(Pull&& pull, PythonRandom& random) {
    while (take(pull)) {
      if (items_.size() < size_) take(pull);
      if (items_.size() >= initial_) return give(random);
    }
    if (items_.empty()) return std::nullopt;
    return give(random);
  }

  // What it holds and whether the source has ended, for checkpoints.
  const std::vector<T>& items() const { return items_; }
  bool source_ended() const { return ended_; }
  void restore(std::vector<T> items, bool source_ended) {
    items_ = std::move(items);
    ended_ = source_ended;
  }

 private:
  template <class Pull>
  bool take(Pull&& pull) {
    if (ended_) return false;
    std::optional<T> item = pull();
    ended_ = !item.has_value();
    if (item) items_.push_back(std::move(*item));
    return item.has_value();
  }

  T give(PythonRandom& random) {
    std::swap(items_[random.below(items_.size())], items_.back());
    T item = std::move(items_.back());
    items_.pop_back();
    return item;
  }

  std::size_t size_, initial_;
  std::vector<T> items_;
  bool ended_ = false;
};

// One of the streams that read a data set.
struct StreamPlace {
  std::int64_t rank = 0, world_size = 1;
  std::int64_t worker = 0, num_workers = 1;
};

// The shards (as indices into the list of `num_shards`) that this stream reads in one pass of the
// epoch, without resampling: the list through a buffer shuffle seeded with seed + epoch, every
// world_size-th from `rank`, of those every num_workers-th from `worker`. May be empty.
// A stream that needs more samples than its shards have makes another pass. With the reference's rules
// every pass has the same order; with corrected rules pass p > 0 goes through the same shards of this
// stream in an order of its own.
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

// The base seeds of a rank's loaders in the order in which they are made (LAION first, MMC4 second),
// drawn once per run from torch's generator seeded with seed + rank.
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
