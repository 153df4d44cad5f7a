#include "floe/starter/deal.h"

#include <algorithm>

#include "floe/data/shards/shard_order.h"

namespace floe::starter {
namespace {

constexpr std::int64_t kNoTelling = std::int64_t{1} << 40;

// Shards that the stream with fewest of them has in one of the first epochs, with the seed of a
// starter; missing ones do not count.
std::int64_t fewest_shards(const DataFacts& facts, const Deal& deal) {
  constexpr std::uint64_t kEpochs = 3;
  const std::int64_t streams = deal.ranks * deal.workers;
  const auto shards = static_cast<std::int64_t>(facts.num_shards);
  std::int64_t least = shards / streams;
  if (facts.missing.empty() || least == 0) return least;
  for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch)
    for (std::int64_t stream = 0; stream < streams; ++stream) {
      const data::StreamPlace place{stream / deal.workers, deal.ranks, stream % deal.workers,
                                    deal.workers};
      std::int64_t there = 0;
      for (const std::int64_t shard : data::shard_order(shards, 0, epoch, place))
        there += !std::binary_search(facts.missing.begin(), facts.missing.end(),
                                     static_cast<std::size_t>(shard));
      least = std::min(least, there);
    }
  return least;
}

}  // namespace

double content_of(const DataFacts& facts) {
  const auto usable = static_cast<double>(facts.usable);
  return facts.source->info().counts_tokens ? usable * facts.mean_tokens : usable;
}

std::int64_t pass_of_stream(const DataFacts& facts, const Deal& deal) {
  const bool unknown = !facts.samples || !facts.unseen.empty();
  if (deal.resampled || deal.ranks * deal.workers == 1)
    return unknown ? kNoTelling
                   : std::max<std::int64_t>(1, static_cast<std::int64_t>(content_of(facts)));
  const std::int64_t shards = fewest_shards(facts, deal);
  if (unknown) return shards > 0 ? kNoTelling : 0;
  return shards * facts.least_in_shard;
}

}  // namespace floe::starter
