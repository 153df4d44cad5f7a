// Batches of one stream: takes its samples in order, makes the draws, and keeps the state that
// belongs to each batch. Everything that depends on the order of samples happens here and nowhere
// else.
#pragma once

#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "floe/data/stream/stream_reader.h"
#include "floe/data/stream/stream_state.h"

namespace floe::data {

inline constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

struct BatchRule {
  // Who shares a left-right flip.
  enum class Flips { none, of_batch, of_sample };

  std::int64_t samples = 0;         // of a batch; or, when 0,
  std::int64_t tokens = 0;          // exactly so many, documents cut where the batch ends
  std::int64_t longest = kNoLimit;  // and after so many
  Flips flips = Flips::none;
  std::optional<std::int64_t> batches_per_epoch;  // of this stream
  double max_bad_fraction = 1;
};

// Samples that make up a batch, and what chance has decided about them.
struct SampleBatch {
  std::vector<Sample> samples;               // whole ones, or pieces of documents
  std::vector<char> flips;                   // one per sample
  std::int64_t bytes = 0;                    // of ids and crops
  std::shared_ptr<const StreamState> after;  // where its stream stands behind it
};
// `count` tokens of a document, from number `first` on, as a sample of their own.
Sample piece_of(const Sample& document, std::int64_t first, std::int64_t count);
// What a sample counts for in SampleBatch::bytes.
std::int64_t bytes_of(const Sample& sample);

// Tells people of damage as it happens: of each reason the first few in full, then they are only
// counted. The streams of a source share one, under its lock.
class DamageLog {
 public:
  explicit DamageLog(std::string source) : source_(std::move(source)) {}
  void tell(std::string_view reason, const std::string& sentence);

 private:
  std::string source_;
  std::map<std::string, std::int64_t, std::less<>> told_;  // by reason
};

class StreamBatches {
 public:
  // `source` is its id, for messages. Keeps a reference to `log`.
  StreamBatches(StreamSetup setup, StreamState start, BatchRule rule, std::string source,
                DamageLog& log);

  // What the reader gave, in its order; `outcome` of samples. Throws DataError when a whole pass
  // does not fill one batch, or when too much is damaged.
  void add(const ReadResult& read, Outcome outcome);

  bool has_batch() const { return !ready_.empty(); }
  // Samples and their bytes in batches that are ready or being filled.
  std::int64_t num_held() const { return num_held_; }
  std::int64_t bytes_held() const { return bytes_held_; }
  // Of these in the batch that is being filled.
  std::int64_t num_open() const { return static_cast<std::int64_t>(open_.samples.size()); }
  std::int64_t bytes_open() const { return open_.bytes; }
  SampleBatch take();

  // True once after the last batch of an epoch: what the reader has given since does not count, and
  // reading begins anew at state().
  bool take_epoch_end() { return std::exchange(epoch_ended_, false); }
  // After the last batch that is ready.
  const StreamState& state() const { return state_; }

 private:
  void note(const Progress& progress);
  void check_for_use() const;
  void add_sample(const ReadResult& read, Outcome outcome);
  void end_pass();
  void drop(const Dropped& dropped);
  void put(Sample sample);
  void add_whole(Sample sample);
  void add_pieces(const ReadResult& read, const Sample& document);
  void complete();

  StreamSetup setup_;
  StreamState state_;
  BatchRule rule_;
  std::string name_;
  DamageLog* log_;  // not null
  SampleBatch open_;
  std::int64_t open_tokens_ = 0;
  std::int64_t num_held_ = 0, bytes_held_ = 0;
  // Of this stream, to notice data without an end and without a usable sample.
  std::int64_t shards_opened_ = 0, samples_found_ = 0;
  std::int64_t shards_without_sample_ = 0;  // in a row
  std::int64_t samples_unused_ = 0;         // in a row
  std::deque<SampleBatch> ready_;
  bool epoch_ended_ = false;
};

}  // namespace floe::data
