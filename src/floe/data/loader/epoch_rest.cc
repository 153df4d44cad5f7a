#include "floe/data/loader/epoch_rest.h"

#include <algorithm>
#include <map>

#include "floe/core/hash.h"
#include "floe/core/str.h"

namespace floe::data {
namespace {

// Where reading would go on in a shard that is open; nothing between two shards.
std::vector<ShardPart> open_part(const StreamPosition& position) {
  const StreamShards& shards = position.shards();
  const Cursor cursor = position.cursor();
  if (position.buffer().ended() || !shards.knows(cursor.ordinal)) return {};
  ShardPart part = shards.opened(cursor.ordinal);
  part.member = std::max(part.member, cursor.member);
  return {part};
}

SampleRef by_shard(const StreamPosition& position, SampleRef sample) {
  sample.ordinal = static_cast<std::uint32_t>(position.shards().opened(sample.ordinal).shard);
  return sample;
}

}  // namespace

std::string EpochRest::text() const {
  const auto begun = std::count_if(parts.begin(), parts.end(),
                                   [](const ShardPart& part) { return part.member > 0; });
  const auto num = [](const auto& items) { return static_cast<std::int64_t>(items.size()); };
  return str(counted(num(parts), "shard"),
             begun ? str(", ", begun, " of them from where reading stopped,") : "", " and ",
             counted(num(samples), "sample"), " of shuffle buffers");
}

EpochRest rest_of(std::span<const StreamState> streams) {
  EpochRest rest;
  rest.epoch = streams.front().position.shards().epoch();
  for (const StreamState& stream : streams)
    rest.epoch = std::min(rest.epoch, stream.position.shards().epoch());
  std::vector<std::vector<ShardPart>> parts;  // of each stream
  for (const StreamState& stream : streams) {
    rest.counts += stream.counts;
    rest.bad_shards.insert(stream.bad_shards.begin(), stream.bad_shards.end());
    const StreamPosition& position = stream.position;
    if (position.shards().epoch() != rest.epoch) continue;  // it has given its share
    rest.next_pass = std::max(rest.next_pass, position.shards().pass() + 1);
    std::vector<ShardPart>& own = parts.emplace_back(open_part(position));
    const auto unopened = position.shards().unopened();
    own.insert(own.end(), unopened.begin(), unopened.end());
    for (const SampleRef& sample : position.buffer().items())
      rest.samples.push_back(by_shard(position, sample));
    if (stream.carried) rest.samples.push_back(by_shard(position, stream.carried->sample));
  }
  // In the order in which the streams would have come to them.
  for (std::size_t i = 0, added = 1; added; ++i) {
    added = 0;
    for (const auto& own : parts)
      if (i < own.size()) {
        rest.parts.push_back(own[i]);
        ++added;
      }
  }
  return rest;
}

StreamState deal(const EpochRest& rest, const StreamSetup& setup, std::int64_t index,
                 std::int64_t count, std::int64_t batches_of_epoch) {
  const auto is_ours = [&](std::size_t i) { return static_cast<std::int64_t>(i) % count == index; };
  std::vector<ShardPart> parts;
  for (std::size_t i = 0; i < rest.parts.size(); ++i)
    if (is_ours(i)) parts.push_back(rest.parts[i]);

  // A seed that the epoch has not used yet: its beginning must not come again.
  const std::uint64_t seed = Hash64()
                                 .add(setup.shards.worker_seed)
                                 .add(rest.epoch)
                                 .add(static_cast<std::uint64_t>(rest.counts.samples))
                                 .value();
  ShardsOptions options = setup.shards;
  options.worker_seed = seed;
  StreamShards shards(options, rest.epoch, std::move(parts), rest.next_pass);

  std::map<std::uint32_t, std::uint32_t> ordinals;  // by shard
  std::vector<SampleRef> samples;
  for (std::size_t i = 0; i < rest.samples.size(); ++i) {
    if (!is_ours(i)) continue;
    SampleRef sample = rest.samples[i];
    const auto [found, is_new] = ordinals.try_emplace(sample.ordinal, 0);
    if (is_new) found->second = shards.add_opened({sample.ordinal, 0});
    sample.ordinal = found->second;
    samples.push_back(sample);
  }
  StreamState state(StreamPosition(std::move(shards), setup.shuffle, seed, std::move(samples)),
                    seed);
  state.batches_of_epoch = batches_of_epoch;
  if (index == 0) {
    state.counts = rest.counts;
    state.bad_shards = rest.bad_shards;
  }
  return state;
}

}  // namespace floe::data
