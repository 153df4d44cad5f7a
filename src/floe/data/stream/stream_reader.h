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
// Opens a shard; throws DataError when it cannot. Called from any thread.
using OpenShard = std::function<std::unique_ptr<MemberSource>(const std::string& where)>;
std::unique_ptr<MemberSource> open_tar(const std::string& where);

struct ReaderOptions {
  std::shared_ptr<const std::vector<std::string>> shards;
  Rules rules = Rules::openflamingo;
  OpenShard open = open_tar;
  const std::atomic<bool>* stop = nullptr;  // reading ends soon after it becomes true
};

// A shard that could not be read to its end.
struct BadShard {
  std::int64_t shard = 0;  // index into the list
  std::string what;
};

// A sample of a shard, and where it was.
struct FoundSample {
  Taken taken;
  RawSample raw;
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
  // nullopt: no shards are left (ended()), the reader was stopped, or this call has met something to
  // tell: a shard that is bad, or many without a sample. Called again it goes on.
  std::optional<FoundSample> next();
  bool ended() const { return ended_; }

  std::vector<BadShard> take_bad_shards() { return std::exchange(bad_, {}); }
  std::int64_t take_num_opened() { return std::exchange(num_opened_, 0); }

 private:
  bool open_shard();
  bool next_member(TarEntry& entry);
  FoundSample found(RawSample raw, Cursor next) const;
  void report(const std::string& what);

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

// What next() gives, and everything that was read for it.
struct Given {
  // lost: a sample that was not there any more at resume. news: nothing but what was read.
  enum class Kind { sample, lost, news, pass_end, stopped };

  Kind kind = Kind::sample;
  SampleRef ref;
  RawSample raw;            // of a sample; of a lost one only its shard
  bool is_carried = false;  // a sample that was begun before the position (StreamReader)
  std::vector<Taken> taken;
  bool source_ended = false;
  std::vector<BadShard> bad_shards;
  std::int64_t shards_opened = 0;
};

class StreamReader {
 public:
  // Begins at the position: reads the samples of its buffer again, which takes as long as reading
  // (not decoding) the shards in which they lie. `carried` is given first, beside the buffer.
  // Samples that are not there any more are given as lost, so that the order of the others stays.
  StreamReader(StreamPosition start, std::optional<SampleRef> carried, ReaderOptions options);

  // Blocks while shards are read. After the end of a pass comes the next pass.
  Given next();

  std::int64_t buffered_bytes() const { return buffer_.bytes(); }

 private:
  struct Item {
    SampleRef ref;
    std::int64_t bytes = 0;
    RawSample raw;
    bool lost = false;
  };

  std::vector<Item> read_again(const std::vector<SampleRef>& wanted);
  void walk_on();
  Given given(Item item);
  bool is_stopped() const { return options_.stop && options_.stop->load(); }

  ReaderOptions options_;
  StreamPosition position_;  // of which the shards are used; the buffer is the one below
  PythonRandom random_;
  ShuffleBuffer<Item> buffer_;
  std::optional<Item> carried_;
  std::unique_ptr<ShardWalker> walker_;
};

}  // namespace floe::data
