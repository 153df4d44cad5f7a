#include "floe/data/stream/stream_reader.h"

#include <algorithm>
#include <map>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/log.h"

namespace floe::data {
namespace {

// Shards without a sample after which a call of the walker comes back: a stream of empty shards
// must not look like one that hangs.
constexpr std::int64_t kMostSilentShards = 64;

class TarMembers : public MemberSource {
 public:
  TarMembers(const std::string& where, const std::atomic<bool>* stop) : reader_(where, stop) {}
  bool next(TarEntry& entry) override { return reader_.next(entry); }

 private:
  TarReader reader_;
};

std::int64_t bytes_of(const RawSample& raw) {
  std::size_t bytes = raw.key.size();
  for (const Field& field : raw.fields) bytes += field.bytes.size();
  return static_cast<std::int64_t>(bytes);
}

}  // namespace

std::unique_ptr<MemberSource> open_tar(const std::string& where, const std::atomic<bool>* stop) {
  return std::make_unique<TarMembers>(where, stop);
}

ShardWalker::NextPart every_nth_shard(std::int64_t first, std::int64_t step, std::size_t count) {
  return [next = first, step, count]() mutable -> std::optional<ShardWalker::Opened> {
    if (next >= static_cast<std::int64_t>(count)) return std::nullopt;
    const std::int64_t shard = std::exchange(next, next + step);
    return ShardWalker::Opened{static_cast<std::uint32_t>(shard), {shard, 0}, true};
  };
}

// ----------------------------------------------------------------------------------- ShardWalker

ShardWalker::ShardWalker(const ReaderOptions& options, NextPart next_part)
    : options_(options), next_part_(std::move(next_part)), grouper_(options.rules) {}

void ShardWalker::report(const std::string& what) {
  if (!is_stopped()) bad_.push_back({shard_index_, what});  // what was given up is not damaged
  members_.reset();
}

// Opens the next shard and skips to its part; false: there is none. A shard that cannot be opened
// counts as one without files.
bool ShardWalker::open_shard() {
  const auto opened = next_part_();
  if (!opened) return false;
  num_opened_ += opened->is_new;
  shard_index_ = opened->part.shard;
  shard_ = (*options_.shards)[static_cast<std::size_t>(shard_index_)];
  ordinal_ = opened->ordinal;
  member_ = 0;
  try {
    members_ = options_.open(shard_, options_.stop);
  } catch (const DataError& error) {
    report(error.what());
  }
  for (TarEntry skipped; members_ && member_ < opened->part.member;)
    if (!next_member(skipped)) break;
  return true;
}

bool ShardWalker::next_member(TarEntry& entry) {
  try {
    if (members_ && members_->next(entry)) {
      ++member_;
      return true;
    }
  } catch (const DataError& error) {
    report(error.what());
  }
  members_.reset();
  return false;
}

FoundSample ShardWalker::found(RawSample raw, Cursor next) const {
  const std::int64_t bytes = bytes_of(raw);
  return {std::move(raw), {{open_->ordinal, open_->member, bytes}, next, ordinal_ + 1}};
}

std::optional<FoundSample> ShardWalker::next() {
  const std::size_t bad_before = bad_.size();
  std::int64_t num_silent = 0;
  while (!is_stopped() && bad_.size() == bad_before && num_silent < kMostSilentShards) {
    num_silent += !members_;
    if (!members_ && !open_shard()) {
      auto last = grouper_.finish();
      ended_ = !last;
      if (ended_) return std::nullopt;
      return found(std::move(*last), {ordinal_ + 1, 0});
    }
    TarEntry entry;
    while (!is_stopped() && next_member(entry)) {
      const Cursor here{ordinal_, member_ - 1};
      auto sample = grouper_.add(shard_, entry.name, std::move(entry.data));
      if (sample) {
        FoundSample result = found(std::move(*sample), here);
        open_ = here;
        return result;
      }
      if (!open_) open_ = here;
    }
    if (is_stopped()) break;
    if (auto sample = grouper_.end_shard()) {
      FoundSample result = found(std::move(*sample), {ordinal_ + 1, 0});
      open_.reset();
      return result;
    }
  }
  return std::nullopt;
}

// ---------------------------------------------------------------------------------- StreamReader

StreamReader::StreamReader(StreamPosition start, std::optional<SampleRef> carried,
                           ReaderOptions options)
    : options_(std::move(options)),
      position_(std::move(start)),
      random_(position_.random()),
      buffer_(position_.buffer().size()) {
  buffer_.restore(read_again(position_.buffer().items()), position_.buffer().ended());
  if (carried) carried_ = std::move(read_again({*carried}).front());
  walk_on();
}

// The samples at those places, in that order.
std::vector<FoundSample> StreamReader::read_again(const std::vector<SampleRef>& wanted) {
  std::map<std::uint32_t, std::vector<std::size_t>> by_shard;  // indices into `wanted`
  std::vector<FoundSample> samples(wanted.size());
  const StreamShards& shards = position_.shards();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    by_shard[wanted[i].ordinal].push_back(i);
    samples[i].at.sample = wanted[i];
    samples[i].raw.shard =
        (*options_.shards)[static_cast<std::size_t>(shards.opened(wanted[i].ordinal).shard)];
    samples[i].lost = true;
  }
  for (auto& [ordinal, indices] : by_shard) {
    std::sort(indices.begin(), indices.end(),
              [&](std::size_t a, std::size_t b) { return wanted[a].member < wanted[b].member; });
    // The shard from the first sample on, and those after it, into which the last one may go on.
    std::uint32_t next = ordinal;
    const std::uint32_t first_member = wanted[indices.front()].member;
    ShardWalker walker(options_, [&, ordinal = ordinal]() -> std::optional<ShardWalker::Opened> {
      if (!shards.knows(next)) return std::nullopt;
      ShardPart part = shards.opened(next);
      if (next == ordinal) part.member = first_member;
      return ShardWalker::Opened{next++, part, false};
    });
    std::size_t reached = 0;
    while (reached < indices.size()) {
      auto found = walker.next();
      for (const BadShard& bad : walker.take_bad_shards())
        log::warn("data: samples cannot be read again at resume: ", bad.what);
      if (!found && !walker.ended() && !is_stopped()) continue;
      if (!found || found->at.sample.ordinal != ordinal) break;
      const std::uint32_t member = found->at.sample.member;
      while (reached < indices.size() && wanted[indices[reached]].member < member)
        ++reached;  // it is not there any more
      if (reached == indices.size() || wanted[indices[reached]].member != member) continue;
      FoundSample& sample = samples[indices[reached++]];
      sample.raw = std::move(found->raw);
      sample.lost = false;
    }
  }
  return samples;
}

// A walker that goes on at the position's cursor.
void StreamReader::walk_on() {
  const Cursor cursor = position_.cursor();
  StreamShards& shards = position_.shards();
  bool begins = shards.knows(cursor.ordinal) && !buffer_.ended();
  std::uint32_t again = cursor.ordinal;
  walker_ = std::make_unique<ShardWalker>(
      options_, [&shards, cursor, begins, again]() mutable -> std::optional<ShardWalker::Opened> {
        if (begins && shards.knows(again)) {
          ShardPart part = shards.opened(again);
          if (again == cursor.ordinal) part.member = std::max(part.member, cursor.member);
          return ShardWalker::Opened{again++, part, false};
        }
        begins = false;
        const auto part = shards.open_next();
        if (!part) return std::nullopt;
        const std::uint32_t ordinal = shards.num_opened() - 1;
        shards.forget_before(ordinal);  // nothing is read again any more
        return ShardWalker::Opened{ordinal, *part, true};
      });
}

ReadResult StreamReader::next() {
  const auto result_of = [](FoundSample sample) {
    ReadResult result;
    result.kind = sample.lost ? ReadResult::Kind::lost : ReadResult::Kind::sample;
    result.ref = sample.at.sample;
    result.raw = std::move(sample.raw);
    return result;
  };
  if (carried_) {
    ReadResult first = result_of(std::move(*carried_));
    first.is_carried = true;
    carried_.reset();
    return first;
  }
  std::vector<Buffered> buffered;
  bool paused = false;  // by something to report
  while (buffer_.wants_more() && !paused) {
    auto found = walker_->next();
    if (is_stopped()) return ReadResult{.kind = ReadResult::Kind::stopped};
    if (!found) {
      paused = !walker_->ended();
      if (!paused) buffer_.end();
      continue;
    }
    buffered.push_back(found->at);
    buffer_.take(std::move(*found));
  }
  ReadResult result;
  if (paused)
    result.kind = ReadResult::Kind::progress;
  else if (buffer_.empty())
    result.kind = ReadResult::Kind::pass_end;
  else
    result = result_of(buffer_.give(random_));
  result.progress = {std::move(buffered), buffer_.ended(), walker_->take_bad_shards(),
                     walker_->take_num_opened()};
  if (result.kind == ReadResult::Kind::pass_end) {
    position_.begin_pass();
    buffer_.restore({}, false);
    walk_on();
  }
  return result;
}

}  // namespace floe::data
