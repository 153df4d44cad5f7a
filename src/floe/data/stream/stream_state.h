// Everything that a stream needs to go on behind a batch.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "floe/data/python/random.h"
#include "floe/data/stream/counts.h"
#include "floe/data/stream/shuffle_buffer.h"
#include "floe/data/stream/stream_shards.h"

namespace floe::data {

// Where a stream of samples stands, without the samples.
//
// Note [Positions]
// A sample is named by where its first file lies: (which shard the stream opened, which file in
// it). Grouping has no memory before the first file of a sample, so reading from there gives it
// again. A position therefore is small: the shards that come, the file at which reading goes on,
// the names of the samples in the shuffle buffer, and a generator. The reader of a stream runs
// ahead of what a training step has seen; each sample that it gives comes with what was read for it
// (Progress), and whoever consumes the samples in order applies that to a position of his own. Both
// make the same draws, so his position is exactly that of the last sample he has seen.

struct SampleRef {
  std::uint32_t ordinal = 0;  // of the shard (stream_shards.h)
  std::uint32_t member = 0;   // file in the shard, from 0
  std::int64_t bytes = 0;
  bool operator==(const SampleRef&) const = default;
};

// Where reading goes on: at the first file of the sample that comes next.
struct Cursor {
  std::uint32_t ordinal = 0, member = 0;
};

// A sample was read into the shuffle buffer.
struct Buffered {
  SampleRef sample;
  Cursor next;
  std::uint32_t num_opened = 0;  // shards, until it was complete
};

// A shard that could not be read to its end.
struct BadShard {
  std::int64_t shard = 0;  // index into the list
  std::string what;
};

// What a reader has read since the last time it said so.
struct Progress {
  std::vector<Buffered> buffered;
  bool source_ended = false;  // the pass has no more samples to read
  std::vector<BadShard> bad_shards;
  std::int64_t shards_opened = 0;
};

class StreamPosition {
 public:
  // At the beginning of what `shards` will open. The draws of the buffer depend on `shuffle_seed`.
  StreamPosition(StreamShards shards, const ShuffleSize& size, std::uint64_t shuffle_seed);
  // The same with samples in the buffer that were opened already.
  StreamPosition(StreamShards shards, const ShuffleSize& size, std::uint64_t shuffle_seed,
                 std::vector<SampleRef> buffer);

  // What was read since the last sample.
  void advance(const Progress& progress);
  // The next sample.
  SampleRef give() { return buffer_.give(random_); }
  // After the last sample of a pass.
  void begin_pass();

  const StreamShards& shards() const { return shards_; }
  StreamShards& shards() { return shards_; }
  const ShuffleBuffer<SampleRef>& buffer() const { return buffer_; }
  const PythonRandom& random() const { return random_; }
  Cursor cursor() const { return cursor_; }
  // The oldest shard that the buffer or the cursor needs.
  std::uint32_t oldest_ordinal() const;

  nlohmann::json save() const;
  static StreamPosition load(const nlohmann::json& saved, const ShardsOptions& shards,
                             const ShuffleSize& size);

 private:
  StreamShards shards_;
  ShuffleBuffer<SampleRef> buffer_;
  PythonRandom random_;
  Cursor cursor_;
};

// What makes one stream differ from another.
struct StreamSetup {
  ShardsOptions shards;
  ShuffleSize shuffle;
  std::uint64_t shuffle_seed = 0;  // of epoch 0

  StreamPosition begin(std::uint64_t epoch) const;
};

// A document of which the first `tokens` tokens were in the batches so far.
struct Carried {
  SampleRef sample;
  std::int64_t tokens = 0;
};

struct StreamState {
  // At the beginning of an epoch. The worker's own generators run on over epochs.
  StreamState(const StreamSetup& setup, std::uint64_t epoch);
  explicit StreamState(StreamPosition at, std::uint64_t worker_seed)
      : position(std::move(at)), coins(worker_seed), flips(worker_seed) {}

  StreamPosition position;
  std::optional<Carried> carried;
  PythonRandom coins;  // for documents with a single picture
  TorchRandom flips;
  Counts counts;                      // since the run began
  std::set<std::int64_t> bad_shards;  // that could not be read to their end, each once
  std::int64_t batches_of_epoch = 0;  // given by this stream
  std::int64_t batches_of_pass = 0;

  nlohmann::json save() const;
  static StreamState load(const nlohmann::json& saved, const StreamSetup& setup);
};

}  // namespace floe::data
