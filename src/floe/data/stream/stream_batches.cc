#include "floe/data/stream/stream_batches.h"

#include <algorithm>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/core/str.h"

namespace floe::data {
namespace {

constexpr float kFlipBelow = 0.5F;
// Of each reason so many are told in full; then they are only counted.
constexpr std::int64_t kMostTold = 3;
// Resampled shards have no pass after which one could say that there is too little.
constexpr std::int64_t kMostBarrenShards = 100;

}  // namespace

Sample piece_of(const Sample& document, std::int64_t first, std::int64_t count) {
  Sample piece;
  piece.shard = document.shard;
  piece.key = document.key;
  piece.ids.assign(document.ids.begin() + first, document.ids.begin() + first + count);
  piece.labels.assign(document.labels.begin() + first, document.labels.begin() + first + count);
  return piece;
}

std::int64_t bytes_of(const Sample& sample) {
  return static_cast<std::int64_t>(sample.crops.size() + 8 * sample.ids.size());
}

void DamageLog::tell(std::string_view reason, const std::string& sentence) {
  const auto found = told_.try_emplace(std::string(reason), 0).first;
  if (++found->second <= kMostTold)
    log::warn("data.", source_, ": ", reason, ": ", sentence,
              found->second == kMostTold ? "; more of these are only counted" : "");
  else
    log::debug("data.", source_, ": ", reason, ": ", sentence);
}

StreamBatches::StreamBatches(StreamSetup setup, StreamState start, BatchRule rule,
                             std::string source, DamageLog& log)
    : setup_(setup), state_(std::move(start)), rule_(rule), name_(std::move(source)), log_(&log) {}

SampleBatch StreamBatches::take() {
  SampleBatch batch = std::move(ready_.front());
  ready_.pop_front();
  num_held_ -= static_cast<std::int64_t>(batch.samples.size());
  bytes_held_ -= batch.bytes;
  return batch;
}

void StreamBatches::add(const ReadResult& read, Outcome outcome) {
  note(read.progress);
  if (read.kind == ReadResult::Kind::pass_end)
    end_pass();
  else if (read.kind != ReadResult::Kind::progress)
    add_sample(read, std::move(outcome));
  const Counts& counts = state_.counts;
  const auto check = [&](std::int64_t bad, std::int64_t all, const char* what) {
    require<DataError>(!too_many(bad, all, rule_.max_bad_fraction), "data.", name_, ": ", bad,
                       " of ", all, " ", what, " are damaged, more than data.max_bad_fraction (",
                       rule_.max_bad_fraction,
                       ") allows; mend the data, or raise it. So far: ", counts.text());
  };
  check(counts.num_damaged(), counts.samples, "samples");
  check(static_cast<std::int64_t>(state_.bad_shards.size()),
        std::min(counts.shards, setup_.shards.num_shards), "shards");
}

// What was read since the last sample.
void StreamBatches::note(const Progress& progress) {
  state_.position.advance(progress);
  state_.counts.shards += progress.shards_opened;
  state_.counts.bad_shards += static_cast<std::int64_t>(progress.bad_shards.size());
  for (const BadShard& bad : progress.bad_shards) {
    state_.bad_shards.insert(bad.shard);
    log_->tell(kBadShardReason, bad.what);
  }
  const auto found = static_cast<std::int64_t>(progress.buffered.size());
  shards_opened_ += progress.shards_opened;
  samples_found_ += found;
  shards_without_sample_ = found ? 0 : shards_without_sample_ + progress.shards_opened;
  check_for_use();
}

// Resampled shards never end, so nothing else would say that there is nothing to use in them. The
// buffer reads ahead; what waits in it has not been looked at and does not count.
void StreamBatches::check_for_use() const {
  const ShardsOptions& shards = setup_.shards;
  if (!shards.resampled) return;
  const std::int64_t most = kMostBarrenShards + 3 * shards.num_shards;
  const std::string drawn = counted(shards.num_shards, "shard");
  require<DataError>(shards_without_sample_ <= most, "data.", name_, ": ", shards_without_sample_,
                     " shards in a row, drawn out of ", drawn, ", held no sample at all. ",
                     why_unused(state_.counts, name_));
  // As many samples as so many shards hold.
  require<DataError>(
      !shards_opened_ ||
          samples_unused_ <= most * std::max<std::int64_t>(1, samples_found_ / shards_opened_),
      "data.", name_, ": ", samples_unused_, " samples in a row, drawn out of ", drawn,
      ", could not be used. ", why_unused(state_.counts, name_));
}

void StreamBatches::drop(const Dropped& dropped) {
  ++state_.counts.dropped[dropped.reason];
  if (is_damage(dropped.reason))
    log_->tell(dropped.reason,
               str("sample '", dropped.key, "' of '", dropped.shard, "': ", dropped.detail));
}

void StreamBatches::add_sample(const ReadResult& read, Outcome outcome) {
  if (!read.is_carried) {
    require(state_.position.give() == read.ref, name_, ": the stream and its position differ");
    ++state_.counts.samples;
  }
  auto* sample = std::get_if<Sample>(&outcome);
  if (sample && sample->single_image && drops_single_image(state_.coins.random())) {
    outcome = Dropped{sample->shard, sample->key, std::string(reason::kSingleImageCoin), ""};
    sample = nullptr;
  }
  if (!sample) {
    ++samples_unused_;
    drop(std::get<Dropped>(outcome));
    return check_for_use();
  }
  if (!read.is_carried) ++state_.counts.kept;
  if (rule_.samples)
    add_whole(std::move(*sample));
  else
    add_pieces(read, *sample);
}

void StreamBatches::put(Sample sample) {
  const std::int64_t bytes = bytes_of(sample);
  open_.samples.push_back(std::move(sample));
  open_.flips.push_back(rule_.flips == BatchRule::Flips::of_sample &&
                        state_.flips.rand() < kFlipBelow);
  open_.bytes += bytes;
  bytes_held_ += bytes;
  ++num_held_;
  samples_unused_ = 0;
}

void StreamBatches::add_whole(Sample sample) {
  put(std::move(sample));
  if (static_cast<std::int64_t>(open_.samples.size()) == rule_.samples) complete();
}

// GPT's packing: batches of exactly rule_.tokens; a document that does not fit is cut, and its rest
// opens the next batch as a sequence of its own. So are pieces of one that the model has no
// positions for.
void StreamBatches::add_pieces(const ReadResult& read, const Sample& document) {
  const auto all = static_cast<std::int64_t>(document.ids.size());
  std::int64_t done = read.is_carried ? std::min(state_.carried->tokens, all) : 0;
  while (done < all && !epoch_ended_) {
    const std::int64_t count = std::min({all - done, rule_.tokens - open_tokens_, rule_.longest});
    put(piece_of(document, done, count));
    done += count;
    open_tokens_ += count;
    state_.carried.reset();
    if (done < all) state_.carried = Carried{read.ref, done};
    if (open_tokens_ == rule_.tokens) complete();
  }
}

void StreamBatches::complete() {
  if (rule_.flips == BatchRule::Flips::of_batch)
    std::fill(open_.flips.begin(), open_.flips.end(), state_.flips.rand() < kFlipBelow);
  ++state_.batches_of_epoch;
  ++state_.batches_of_pass;
  if (rule_.batches_per_epoch && state_.batches_of_epoch >= *rule_.batches_per_epoch) {
    state_.position = setup_.begin(state_.position.shards().epoch() + 1);
    state_.carried.reset();
    state_.batches_of_epoch = state_.batches_of_pass = 0;
    epoch_ended_ = true;
  }
  std::uint32_t oldest = state_.position.oldest_ordinal();
  if (state_.carried) oldest = std::min(oldest, state_.carried->sample.ordinal);
  state_.position.shards().forget_before(oldest);
  open_.after = std::make_shared<const StreamState>(state_);
  ready_.push_back(std::exchange(open_, {}));
  open_tokens_ = 0;
}

void StreamBatches::end_pass() {
  const StreamShards& shards = state_.position.shards();
  if (state_.batches_of_pass == 0 && shards.is_whole_pass()) {
    const StreamPlace& place = setup_.shards.place;
    const std::string whose =
        str("data.", name_, ": the ",
            counted(static_cast<std::int64_t>(shards.shards_of_pass()), "shard"), " of worker ",
            place.worker, " of rank ", place.rank);
    const auto usable = static_cast<std::int64_t>(open_.samples.size());
    require<DataError>(usable > 0, whose, " held no usable sample. ",
                       why_unused(state_.counts, name_));
    throw DataError(
        str(whose, " hold ",
            rule_.samples
                ? str(counted(usable, "usable sample"), ", less than one batch of ", rule_.samples)
                : str(counted(open_tokens_, "token"), ", less than one batch of ", rule_.tokens),
            "; give it more shards or fewer workers, or make batches smaller. So far: ",
            state_.counts.text()));
  }
  state_.counts.left_over += rule_.samples ? static_cast<std::int64_t>(open_.samples.size()) : 0;
  num_held_ -= static_cast<std::int64_t>(open_.samples.size());
  bytes_held_ -= open_.bytes;
  open_ = {};
  open_tokens_ = 0;
  state_.batches_of_pass = 0;
  state_.position.begin_pass();
}

}  // namespace floe::data
