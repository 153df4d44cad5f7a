#include "floe/data/stream/stream_shards.h"

#include <nlohmann/json.hpp>

#include "floe/core/error.h"
#include "floe/data/stream/stream_codec.h"

namespace floe::data {

namespace {

std::vector<std::uint64_t> numbers_of(const auto& parts) {
  std::vector<std::uint64_t> numbers;
  for (const ShardPart& part : parts) {
    numbers.push_back(static_cast<std::uint64_t>(part.shard));
    numbers.push_back(part.member);
  }
  return numbers;
}

std::vector<ShardPart> parts_of(const std::vector<std::uint64_t>& numbers,
                                std::int64_t num_shards) {
  require<DataError>(numbers.size() % 2 == 0, "loader state: a list of shards is cut off");
  std::vector<ShardPart> parts;
  for (std::size_t i = 0; i < numbers.size(); i += 2) {
    require<DataError>(numbers[i] < static_cast<std::uint64_t>(num_shards),
                       "loader state: it names shard ", numbers[i], " of ", num_shards);
    parts.push_back({static_cast<std::int64_t>(numbers[i]), narrow_u32(numbers[i + 1])});
  }
  return parts;
}

}  // namespace

StreamShards::StreamShards(const ShardsOptions& options, std::uint64_t epoch)
    : options_(options), epoch_(epoch) {
  if (options.resampled)
    resampled_.emplace(options.num_shards, options.worker_seed, epoch, options.place.num_workers);
  else
    order_pass();
}

StreamShards::StreamShards(const ShardsOptions& options, std::uint64_t epoch,
                           std::vector<ShardPart> parts, std::uint64_t next_pass)
    : StreamShards(options, epoch) {
  if (resampled_) return;
  pass_ = next_pass - 1;
  is_rest_ = true;
  pass_parts_ = std::make_shared<const std::vector<ShardPart>>(std::move(parts));
}

void StreamShards::order_pass() {
  std::vector<ShardPart> parts;
  for (const std::int64_t shard : shard_order(options_.num_shards, options_.seed, epoch_,
                                              options_.place, options_.rules, pass_))
    parts.push_back({shard, 0});
  pass_parts_ = std::make_shared<const std::vector<ShardPart>>(std::move(parts));
  next_ = 0;
  is_rest_ = false;
}

std::optional<ShardPart> StreamShards::open_next() {
  ShardPart part;
  if (resampled_) {
    part.shard = resampled_->next();
  } else {
    if (next_ == pass_parts_->size()) return std::nullopt;
    part = (*pass_parts_)[next_++];
  }
  known_.push_back(part);
  return part;
}

void StreamShards::begin_pass() {
  ++pass_;
  order_pass();
}

std::vector<ShardPart> StreamShards::unopened() const {
  if (resampled_) return {};
  return {pass_parts_->begin() + static_cast<std::ptrdiff_t>(next_), pass_parts_->end()};
}

const ShardPart& StreamShards::opened(std::uint32_t ordinal) const {
  require(knows(ordinal), "shard number ", ordinal, " of the stream was forgotten");
  return known_[ordinal - first_known_];
}

void StreamShards::forget_before(std::uint32_t ordinal) {
  while (first_known_ < ordinal && !known_.empty()) {
    known_.pop_front();
    ++first_known_;
  }
}

std::uint32_t StreamShards::add_opened(const ShardPart& part) {
  known_.push_back(part);
  return num_opened() - 1;
}

nlohmann::json StreamShards::save() const {
  nlohmann::json saved{{"epoch", epoch_},
                       {"pass", pass_},
                       {"first_ordinal", first_known_},
                       {"opened", encode_numbers(numbers_of(known_))}};
  if (resampled_) {
    saved["draws"] = encode_words(ResampledShards(*resampled_).random().state());
  } else {
    saved["next"] = next_;
    if (is_rest_) saved["rest"] = encode_numbers(numbers_of(*pass_parts_));
  }
  return saved;
}

StreamShards StreamShards::load(const nlohmann::json& saved, const ShardsOptions& options) {
  StreamShards shards(options, get<std::uint64_t>(saved, "epoch"));
  shards.pass_ = get<std::uint64_t>(saved, "pass");
  shards.first_known_ = narrow_u32(get<std::uint64_t>(saved, "first_ordinal"));
  const auto known =
      parts_of(decode_numbers(get<std::string>(saved, "opened")), options.num_shards);
  shards.known_.assign(known.begin(), known.end());
  if (options.resampled) {
    shards.resampled_->random().set_state(decode_words(get<std::string>(saved, "draws")));
    return shards;
  }
  if (saved.contains("rest")) {
    shards.is_rest_ = true;
    shards.pass_parts_ = std::make_shared<const std::vector<ShardPart>>(
        parts_of(decode_numbers(get<std::string>(saved, "rest")), options.num_shards));
  } else {
    shards.order_pass();
  }
  shards.next_ = get<std::uint64_t>(saved, "next");
  require<DataError>(shards.next_ <= shards.pass_parts_->size(),
                     "loader state: it stands at shard ", shards.next_, " of a pass that has ",
                     shards.pass_parts_->size());
  return shards;
}

}  // namespace floe::data
