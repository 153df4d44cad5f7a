// Reads the shards of one stream and gives its samples in shuffled order, undecoded.
//
// One thread at a time. Runs ahead of training; Note [Positions] says how its place is kept.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "floe/data/shards/grouping.h"
#include "floe/data/stream/stream_state.h"
#include "floe/io/tar/tar.h"

namespace floe::data {

// The files of one shard, in order.
class MemberSource {
 public:
  virtual ~MemberSource() = default;
  // As TarReader::next().
  virtual bool next(TarEntry& entry) = 0;
};
// Opens a shard; throws DataError when it cannot. Called from any thread. `stop` (or null) as in
// open_input().
using OpenShard = std::function<std::unique_ptr<MemberSource>(const std::string& where,
                                                              const std::atomic<bool>* stop)>;
std::unique_ptr<MemberSource> open_tar(const std::string& where, const std::atomic<bool>* stop);

struct ReaderOptions {
  std::shared_ptr<const std::vector<std::string>> shards;
  Rules rules = Rules::openflamingo;
  OpenShard open = open_tar;
  const std::atomic<bool>* stop = nullptr;  // reading ends soon after it becomes true
};

// A sample of a shard, undecoded, and where it was.
struct FoundSample {
  RawSample raw;
  Buffered at;
  bool lost = false;  // it is not there any more: of `raw` only the shard is known

  std::int64_t bytes() const { return at.sample.bytes; }
};

// Shards in a row, as a stream of samples. A sample may go on in the next shard (grouping.h).
class ShardWalker {
 public:
  struct Opened {
    std::uint32_t ordinal;
    ShardPart part;
    bool is_new;  // it was not opened before the position
  };
  using NextPart = std::function<std::optional<Opened>()>;

  ShardWalker(const ReaderOptions& options, NextPart next_part);
  // Nothing when no shards are left (ended()), when it was stopped, or when there is something to
  // report: a shard that is bad, or many without a sample. Called again it goes on.
  std::optional<FoundSample> next();
  bool ended() const { return ended_; }

  std::vector<BadShard> take_bad_shards() { return std::exchange(bad_, {}); }
  std::int64_t take_num_opened() { return std::exchange(num_opened_, 0); }

 private:
  bool open_shard();
  bool next_member(TarEntry& entry);
  FoundSample found(RawSample raw, Cursor next) const;
  void report(const std::string& what);
  bool is_stopped() const { return options_.stop && options_.stop->load(); }

  const ReaderOptions& options_;
  NextPart next_part_;
  Grouper grouper_;
  std::int64_t shard_index_ = 0;
  std::string shard_;
  std::unique_ptr<MemberSource> members_;
  std::uint32_t ordinal_ = 0, member_ = 0;  // of the file that comes next
  std::optional<Cursor> open_;              // where the sample that is being read began
  std::vector<BadShard> bad_;
  std::int64_t num_opened_ = 0;
  bool ended_ = false;
};

// Of `count` shards the `first`, and from there every `step`-th, each whole and once.
ShardWalker::NextPart every_nth_shard(std::int64_t first, std::int64_t step, std::size_t count);

// What the reader of a stream gives next, and everything that was read for it.
struct ReadResult {
  // lost: a sample that was not there any more at resume. progress: nothing but what was read.
  enum class Kind { sample, lost, progress, pass_end, stopped };

  Kind kind = Kind::sample;
  SampleRef ref;
  RawSample raw;            // of a sample; of a lost one only its shard
  bool is_carried = false;  // a sample that was begun before the position (StreamReader)
  Progress progress;
};

class StreamReader {
 public:
  // Begins at the position: reads the samples of its buffer again, which takes as long as reading
  // (not decoding) the shards in which they lie. `carried` is given first, beside the buffer.
  // Samples that are not there any more are given as lost, so that the order of the others stays.
  StreamReader(StreamPosition start, std::optional<SampleRef> carried, ReaderOptions options);

  // Blocks while shards are read. After the end of a pass comes the next pass.
  ReadResult next();

  std::int64_t buffered_bytes() const { return buffer_.bytes(); }

 private:
  std::vector<FoundSample> read_again(const std::vector<SampleRef>& wanted);
  void walk_on();
  bool is_stopped() const { return options_.stop && options_.stop->load(); }

  ReaderOptions options_;
  StreamPosition position_;  // of which the shards are used; the buffer is the one below
  PythonRandom random_;
  ShuffleBuffer<FoundSample> buffer_;
  std::optional<FoundSample> carried_;
  std::unique_ptr<ShardWalker> walker_;
};

}  // namespace floe::data
