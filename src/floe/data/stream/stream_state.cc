#include "floe/data/stream/stream_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "floe/core/hash.h"
#include "floe/data/stream/stream_codec.h"

namespace floe::data {

StreamPosition::StreamPosition(StreamShards shards, const ShuffleSize& size,
                               std::uint64_t shuffle_seed)
    : StreamPosition(std::move(shards), size, shuffle_seed, {}) {}

StreamPosition::StreamPosition(StreamShards shards, const ShuffleSize& size,
                               std::uint64_t shuffle_seed, std::vector<SampleRef> buffer)
    : shards_(std::move(shards)), buffer_(size), random_(shuffle_seed) {
  cursor_.ordinal = shards_.num_opened();
  buffer_.restore(std::move(buffer), false);
}

void StreamPosition::advance(const Progress& progress) {
  for (const Buffered& each : progress.buffered) {
    while (shards_.num_opened() < each.num_opened) shards_.open_next();
    buffer_.take(each.sample);
    cursor_ = each.next;
  }
  if (progress.source_ended) buffer_.end();
}

void StreamPosition::begin_pass() {
  while (shards_.open_next()) {
  }
  shards_.forget_before(shards_.num_opened());
  shards_.begin_pass();
  buffer_.restore({}, false);
  cursor_ = {shards_.num_opened(), 0};
}

std::uint32_t StreamPosition::oldest_ordinal() const {
  std::uint32_t oldest = cursor_.ordinal;
  for (const SampleRef& sample : buffer_.items()) oldest = std::min(oldest, sample.ordinal);
  return oldest;
}

nlohmann::json StreamPosition::save() const {
  const std::uint32_t oldest = oldest_ordinal();
  std::vector<std::uint64_t> numbers;
  for (const SampleRef& sample : buffer_.items()) {
    numbers.push_back(sample.ordinal - oldest);
    numbers.push_back(sample.member);
    numbers.push_back(static_cast<std::uint64_t>(sample.bytes));
  }
  return {{"shards", shards_.save()},
          {"ordinal", cursor_.ordinal},
          {"member", cursor_.member},
          {"ended", buffer_.ended()},
          {"random", encode_words(random_.state())},
          {"oldest", oldest},
          {"buffer", encode_numbers(numbers)}};
}

StreamPosition StreamPosition::load(const nlohmann::json& saved, const ShardsOptions& options,
                                    const ShuffleSize& size) {
  StreamPosition position(StreamShards::load(get<nlohmann::json>(saved, "shards"), options), size,
                          0);
  const StreamShards& shards = position.shards_;
  position.cursor_ = {narrow_u32(get<std::uint64_t>(saved, "ordinal")),
                      narrow_u32(get<std::uint64_t>(saved, "member"))};
  position.random_.set_state(decode_words(get<std::string>(saved, "random")));
  const std::uint64_t oldest = get<std::uint64_t>(saved, "oldest");
  const auto numbers = decode_numbers(get<std::string>(saved, "buffer"));
  require<DataError>(numbers.size() % 3 == 0, "loader state: the shuffle buffer is cut off");
  std::vector<SampleRef> buffer;
  for (std::size_t i = 0; i < numbers.size(); i += 3) {
    const SampleRef sample{narrow_u32(oldest + numbers[i]), narrow_u32(numbers[i + 1]),
                           narrow_u32(numbers[i + 2])};
    require<DataError>(shards.knows(sample.ordinal),
                       "loader state: the shuffle buffer names a shard that was not opened");
    buffer.push_back(sample);
  }
  const bool ended = get<bool>(saved, "ended");
  require<DataError>(ended || position.cursor_.ordinal == shards.num_opened() ||
                         shards.knows(position.cursor_.ordinal),
                     "loader state: it stands in a shard that was not opened");
  position.buffer_.restore(std::move(buffer), ended);
  return position;
}

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
