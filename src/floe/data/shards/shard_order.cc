#include "floe/data/shards/shard_order.h"

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/data/stream/shuffle_buffer.h"

namespace floe::data {
namespace {

constexpr ShuffleSize kShuffle{.samples = 2000, .initial = 500};

}  // namespace

std::vector<std::int64_t> shard_order(std::int64_t num_shards, std::uint64_t seed,
                                      std::uint64_t epoch, const StreamPlace& place, Rules rules,
                                      std::uint64_t pass) {
  require(place.world_size >= 1 && place.rank >= 0 && place.rank < place.world_size &&
              place.num_workers >= 1 && place.worker >= 0 && place.worker < place.num_workers,
          "there is no rank ", place.rank, " of ", place.world_size, ", worker ", place.worker,
          " of ", place.num_workers);
  PythonRandom random(seed + epoch);
  ShuffleBuffer<std::int64_t> shuffle(kShuffle);
  std::int64_t given = 0, turn = 0;
  const auto pull = [&]() -> std::optional<std::int64_t> {
    if (given == num_shards) return std::nullopt;
    return given++;
  };
  std::vector<std::int64_t> order;
  for (; auto shard = shuffle.next(pull, random); ++turn) {
    if (turn % place.world_size != place.rank) continue;
    if (turn / place.world_size % place.num_workers == place.worker) order.push_back(*shard);
  }
  if (rules == Rules::corrected && pass > 0) {
    const auto rank = static_cast<std::uint64_t>(place.rank);
    const auto worker = static_cast<std::uint64_t>(place.worker);
    Hash64 own;
    own.add(seed + epoch).add(pass).add(rank).add(worker);
    PythonRandom(own.value()).shuffle(order);
  }
  return order;
}

ResampledShards::ResampledShards(std::int64_t num_shards, std::uint64_t worker_seed,
                                 std::uint64_t epoch, std::int64_t num_workers)
    : num_shards_(static_cast<std::uint64_t>(num_shards)),
      random_(worker_seed + epoch * static_cast<std::uint64_t>(num_workers)) {
  require(num_shards >= 1, "there are no shards to draw from");
}

std::int64_t ResampledShards::next() {
  return static_cast<std::int64_t>(random_.below(num_shards_));
}

std::vector<std::uint64_t> loader_base_seeds(std::uint64_t seed, std::int64_t rank,
                                             std::size_t num_loaders) {
  TorchRandom random(seed + static_cast<std::uint64_t>(rank));
  std::vector<std::uint64_t> seeds;
  for (std::size_t i = 0; i < num_loaders; ++i)
    seeds.push_back(static_cast<std::uint64_t>(random.int64()));
  return seeds;
}

EpochSize epoch_size(std::int64_t num_samples, std::int64_t batch_size, std::int64_t world_size,
                     std::int64_t num_workers, bool floor) {
  require(num_samples >= 0 && batch_size >= 1 && world_size >= 1 && num_workers >= 1,
          "an epoch of ", num_samples, " samples in batches of ", batch_size, " for ", world_size,
          " ranks with ", num_workers, " workers cannot be");
  const auto divide = [floor](std::int64_t a, std::int64_t b) {
    return floor ? a / b : ceil_div(a, b);
  };
  EpochSize size;
  size.batches_per_worker = divide(divide(num_samples, batch_size * world_size), num_workers);
  size.batches = size.batches_per_worker * num_workers;
  size.samples = size.batches * batch_size * world_size;
  return size;
}

}  // namespace floe::data
