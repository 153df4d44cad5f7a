// The shards of one stream, one after the other: the passes over its share of the list, or draws
// with replacement.
//
// Every shard that is opened gets the next ordinal, which names it as long as a sample of it may be
// read again. A value: a copy goes on by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "floe/data/shards/shard_order.h"

namespace floe::data {

struct ShardsOptions {
  std::int64_t num_shards = 0;
  std::uint64_t seed = 0;
  std::uint64_t worker_seed = 0;  // of resampling
  StreamPlace place;
  Rules rules = Rules::openflamingo;
  bool resampled = false;
};

// A shard from its `member`-th file on; 0 is the whole shard.
struct ShardPart {
  std::int64_t shard = 0;  // index into the list of shards
  std::uint32_t member = 0;
  bool operator==(const ShardPart&) const = default;
};

class StreamShards {
 public:
  // At the beginning of an epoch.
  StreamShards(const ShardsOptions& options, std::uint64_t epoch);
  // A pass over these parts first; then whole passes, from number `next_pass` on.
  StreamShards(const ShardsOptions& options, std::uint64_t epoch, std::vector<ShardPart> parts,
               std::uint64_t next_pass);

  // Opens the next one; nullopt: the pass is over. Resampled shards never end.
  std::optional<ShardPart> open_next();
  void begin_pass();

  std::uint64_t epoch() const { return epoch_; }
  std::uint64_t pass() const { return pass_; }
  // A pass over all shards of the stream, not over a rest of them.
  bool is_whole_pass() const { return !is_rest_; }
  std::size_t shards_of_pass() const { return resampled_ ? 0 : pass_parts_->size(); }
  // What the pass has not opened yet.
  std::vector<ShardPart> unopened() const;

  std::uint32_t num_opened() const {
    return first_known_ + static_cast<std::uint32_t>(known_.size());
  }
  // The shard of that ordinal, which was opened and not forgotten.
  const ShardPart& opened(std::uint32_t ordinal) const;
  bool knows(std::uint32_t ordinal) const {
    return ordinal >= first_known_ && ordinal < num_opened();
  }
  void forget_before(std::uint32_t ordinal);
  // Puts a shard in front of everything that comes, with an ordinal of its own.
  std::uint32_t add_opened(const ShardPart& part);

  // For checkpoints. `load` throws DataError for what save() cannot have given with these options.
  nlohmann::json save() const;
  static StreamShards load(const nlohmann::json& saved, const ShardsOptions& options);

 private:
  void order_pass();

  ShardsOptions options_;
  std::uint64_t epoch_ = 0, pass_ = 0;
  std::shared_ptr<const std::vector<ShardPart>> pass_parts_;  // shared by copies; never changes
  std::size_t next_ = 0;                                      // in pass_parts_
  bool is_rest_ = false;
  std::optional<ResampledShards> resampled_;
  std::deque<ShardPart> known_;  // ordinals first_known_, first_known_ + 1, …
  std::uint32_t first_known_ = 0;
};

}  // namespace floe::data
