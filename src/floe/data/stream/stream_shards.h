// The shards of one stream, one after the other: the passes over its share of the list, or draws
// with replacement.
//
// Every shard that is opened gets the next ordinal, which names it as long as a sample of it may be
// read again. A value: a copy goes on by itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "floe/data/python/random.h"
#include "floe/data/shards/shard_order.h"

namespace floe::data {

// The buffer out of which a stream draws its samples: WebDataset's buffer shuffle, also bounded in
// bytes. The same steps on samples and on mere references to them give the same order, which is how
// a position is kept without the samples (stream_position.h).

struct ShuffleSize {
  std::size_t samples = 5000;
  std::size_t initial = 1000;  // from which on it gives some
  std::int64_t bytes = std::int64_t{1} << 30;
};

// One step takes an item, a second one while the buffer is below its size, and gives one when it
// holds `initial`. A buffer that holds its bytes counts as full, so it takes one and gives one; above
// them it gives without taking. Item has `bytes`.
//
//   while (buffer.wants_more()) source ? buffer.take(item) : buffer.end();
//   if (!buffer.empty()) use(buffer.give(random));
template <class Item>
class ShuffleBuffer {
 public:
  explicit ShuffleBuffer(const ShuffleSize& size) : size_(size) {
    size_.initial = std::min(size_.initial, size_.samples);
  }

  bool wants_more() const { return !ended_ && !ready_; }
  void take(Item item) {
    bytes_ += item.bytes;
    items_.push_back(std::move(item));
    const bool second = !took_one_ && items_.size() < size_.samples && bytes_ < size_.bytes;
    took_one_ = second;
    if (!second) ready_ = items_.size() >= size_.initial || bytes_ >= size_.bytes;
  }
  // There are no more items; what it holds is given in the same way.
  void end() { ended_ = true; }

  // Not empty, and wants no more.
  Item give(PythonRandom& random) {
    std::swap(items_[random.below(items_.size())], items_.back());
    Item item = std::move(items_.back());
    items_.pop_back();
    bytes_ -= item.bytes;
    took_one_ = false;
    ready_ = bytes_ > size_.bytes;
    return item;
  }

  bool empty() const { return items_.empty(); }
  bool ended() const { return ended_; }
  std::int64_t bytes() const { return bytes_; }
  const std::vector<Item>& items() const { return items_; }
  const ShuffleSize& size() const { return size_; }

  // A buffer that has just given an item and holds these.
  void restore(std::vector<Item> items, bool ended) {
    items_ = std::move(items);
    bytes_ = 0;
    for (const Item& item : items_) bytes_ += item.bytes;
    took_one_ = false;
    ended_ = ended;
    ready_ = bytes_ > size_.bytes;
  }

 private:
  ShuffleSize size_;
  std::vector<Item> items_;
  std::int64_t bytes_ = 0;
  bool took_one_ = false;  // of this step, and may take another
  bool ready_ = false;     // gives before it takes
  bool ended_ = false;
};

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
