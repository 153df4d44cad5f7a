#include "floe/data/stream_state.h"

#include <nlohmann/json.hpp>

#include "floe/core/hash.h"
#include "floe/data/stream_codec.h"

namespace floe::data {

StreamPosition StreamSetup::begin(std::uint64_t epoch) const {
  return {StreamShards(shards, epoch), shuffle, Hash64().add(shuffle_seed).add(epoch).value()};
}

StreamState::StreamState(const StreamSetup& setup, std::uint64_t epoch)
    : StreamState(setup.begin(epoch), setup.shards.worker_seed) {}

nlohmann::json StreamState::save() const {
  nlohmann::json saved{{"position", position.save()},
                       {"coins", encode_words(coins.state())},
                       {"flips", encode_words(flips.state())},
                       {"counts", counts.save()},
                       {"bad_shards", encode_numbers(std::vector<std::uint64_t>(bad_shards.begin(),
                                                                                bad_shards.end()))},
                       {"batches_of_epoch", batches_of_epoch},
                       {"batches_of_pass", batches_of_pass}};
  if (carried)
    saved["carried"] = {{"ordinal", carried->sample.ordinal},
                        {"member", carried->sample.member},
                        {"bytes", carried->sample.bytes},
                        {"tokens", carried->tokens}};
  return saved;
}

StreamState StreamState::load(const nlohmann::json& saved, const StreamSetup& setup) {
  StreamState state(
      StreamPosition::load(get<nlohmann::json>(saved, "position"), setup.shards, setup.shuffle),
      setup.shards.worker_seed);
  state.coins.set_state(decode_words(get<std::string>(saved, "coins")));
  state.flips.set_state(decode_words(get<std::string>(saved, "flips")));
  state.counts = Counts::load(get<nlohmann::json>(saved, "counts"));
  for (const std::uint64_t shard : decode_numbers(get<std::string>(saved, "bad_shards")))
    state.bad_shards.insert(narrow_u32(shard));
  state.batches_of_epoch = get<std::int64_t>(saved, "batches_of_epoch");
  state.batches_of_pass = get<std::int64_t>(saved, "batches_of_pass");
  if (saved.contains("carried")) {
    const auto carried = get<nlohmann::json>(saved, "carried");
    state.carried = Carried{
        {narrow_u32(get<std::uint64_t>(carried, "ordinal")),
         narrow_u32(get<std::uint64_t>(carried, "member")), get<std::int64_t>(carried, "bytes")},
        get<std::int64_t>(carried, "tokens")};
    require<DataError>(state.position.shards().knows(state.carried->sample.ordinal),
                       "loader state: the open document lies in a shard that was not opened");
  }
  return state;
}

}  // namespace floe::data
