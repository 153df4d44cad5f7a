#include "floe/data/stream_position.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "floe/data/stream_codec.h"

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

void StreamPosition::take(std::span<const Taken> taken, bool source_ended) {
  for (const Taken& each : taken) {
    while (shards_.num_opened() < each.num_opened) shards_.open_next();
    buffer_.take(each.sample);
    cursor_ = each.next;
  }
  if (source_ended) buffer_.end();
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

}  // namespace floe::data
