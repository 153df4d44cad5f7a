#include "floe/data/shards/held_out.h"

#include <algorithm>
#include <exception>
#include <latch>

#include "floe/core/log.h"
#include "floe/data/sources/source_plan.h"

namespace floe::data {

struct HeldOut::OfSource {
  OfSource(SourcePlan p, const DataConfig& config, const LoaderContext& context,
           const std::atomic<bool>* stop)
      : plan(std::move(p)), next_shard(context.rank) {
    options.shards = std::make_shared<const std::vector<std::string>>(plan.shards);
    options.rules = config.rules;
    options.open = plan.open;
    options.stop = stop;
    const std::int64_t world = context.world;
    walker.emplace(options, [this, world]() -> std::optional<ShardWalker::Opened> {
      if (next_shard >= static_cast<std::int64_t>(plan.shards.size())) return std::nullopt;
      const std::int64_t shard = std::exchange(next_shard, next_shard + world);
      return ShardWalker::Opened{static_cast<std::uint32_t>(shard), {shard, 0}, true};
    });
  }

  // The next raw sample of the shards; nothing at their end, or when reading was stopped.
  std::optional<RawSample> read() {
    std::optional<FoundSample> found;
    while (!found && !walker->ended() && !(options.stop && options.stop->load())) {
      found = walker->next();
      for (const BadShard& bad : walker->take_bad_shards()) {
        ++counts.bad_shards;
        log::warn("validation: ", plan.shards[static_cast<std::size_t>(bad.shard)], " of ",
                  plan.shards_key, ": ", bad.what, "; what comes before it counts");
      }
      counts.shards += walker->take_num_opened();
    }
    if (!found) return std::nullopt;
    return std::move(found->raw);
  }

  // A document that is longer than a batch of text comes in pieces, each a sequence of its own, as in
  // training.
  void cut(const Sample& document) {
    const std::size_t all = document.ids.size(), most = static_cast<std::size_t>(plan.per_batch);
    for (std::size_t begin = 0; begin < all; begin += most) {
      const auto first = static_cast<std::ptrdiff_t>(begin);
      const auto last = static_cast<std::ptrdiff_t>(std::min(all, begin + most));
      Sample& piece = pieces.emplace_back();
      piece.shard = document.shard;
      piece.key = document.key;
      piece.ids.assign(document.ids.begin() + first, document.ids.begin() + last);
      piece.labels.assign(document.labels.begin() + first, document.labels.begin() + last);
    }
  }

  SourcePlan plan;
  std::deque<Sample> pieces;  // of text, that wait for a batch
  ReaderOptions options;
  std::int64_t next_shard;
  std::optional<ShardWalker> walker;
  Counts counts;
};

HeldOut::HeldOut(const DataConfig& config, const LoaderContext& context,
                 const HeldOutOptions& options)
    : context_(context),
      transform_(context.transform),
      options_(options),
      pool_(static_cast<int>(config.threads)) {
  if (config.batches) {
    prepared_ = std::make_unique<Loader>(config, context);
    return;
  }
  for (SourcePlan& plan : source_plans(config, context_, transform_))
    sources_.push_back(
        std::make_unique<OfSource>(std::move(plan), config, context_, options_.stop));
}

HeldOut::~HeldOut() = default;

std::optional<Step> HeldOut::next() {
  const auto& max_batches = options_.max_batches;
  if (is_stopped()) return std::nullopt;
  if (prepared_) {
    if (max_batches && num_given_ == *max_batches) return std::nullopt;
    if (num_given_ == prepared_->steps_per_epoch()) return std::nullopt;
    ++num_given_;
    return prepared_->next();
  }
  for (; at_ < sources_.size(); ++at_, num_given_ = 0) {
    if (max_batches && num_given_ == *max_batches) continue;
    if (auto step = next_of(*sources_[at_])) {
      ++num_given_;
      return step;
    }
  }
  return std::nullopt;
}

void HeldOut::probe() {
  for (const auto& source : sources_) {
    std::vector<Sample> samples;
    while (samples.empty() && read(*source, 1, samples)) {
    }
  }
}

std::vector<std::pair<SourceId, Counts>> HeldOut::counts() const {
  std::vector<std::pair<SourceId, Counts>> counts;
  for (const auto& source : sources_) counts.emplace_back(source->plan.id, source->counts);
  return counts;
}

std::vector<std::pair<SourceId, std::vector<std::string>>> HeldOut::shards() const {
  std::vector<std::pair<SourceId, std::vector<std::string>>> shards;
  for (const auto& source : sources_) shards.emplace_back(source->plan.id, source->plan.shards);
  return shards;
}

bool HeldOut::read(OfSource& source, std::int64_t most, std::vector<Sample>& samples) {
  std::vector<RawSample> raws;
  bool ended = false;
  while (!ended && static_cast<std::int64_t>(raws.size()) < most) {
    auto raw = source.read();
    ended = !raw;
    if (raw) raws.push_back(std::move(*raw));
  }
  // Decoded side by side.
  std::vector<Outcome> outcomes(raws.size());
  std::vector<std::exception_ptr> failures(raws.size());
  std::latch made(static_cast<std::ptrdiff_t>(raws.size()));
  for (std::size_t i = 0; i < raws.size(); ++i)
    pool_.submit([&, i] {
      try {
        outcomes[i] = source.plan.maker->make(raws[i]);
      } catch (...) {
        failures[i] = std::current_exception();
      }
      made.count_down();
    });
  made.wait();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  source.counts.samples += static_cast<std::int64_t>(raws.size());
  for (Outcome& outcome : outcomes) {
    if (auto* sample = std::get_if<Sample>(&outcome)) {
      ++source.counts.kept;
      samples.push_back(std::move(*sample));
    } else {
      ++source.counts.dropped[std::get<Dropped>(outcome).reason];
    }
  }
  return !ended;
}

std::optional<Step> HeldOut::next_of(OfSource& source) {
  const SourcePlan& plan = source.plan;
  const auto full = [&](const StreamBatch& batch) {
    if (plan.rule.samples) return static_cast<std::int64_t>(batch.samples.size()) >= plan.per_batch;
    std::int64_t tokens = 0;
    for (const Sample& sample : batch.samples)
      tokens += static_cast<std::int64_t>(sample.ids.size());
    return tokens >= plan.per_batch;
  };
  StreamBatch batch;
  for (bool goes_on = true; goes_on && !full(batch);) {
    if (plan.rule.samples) {  // as many as are missing
      goes_on = read(source, plan.per_batch - static_cast<std::int64_t>(batch.samples.size()),
                     batch.samples);
      continue;
    }
    if (source.pieces.empty()) {
      std::vector<Sample> documents;
      goes_on = read(source, 1, documents);
      for (const Sample& document : documents) source.cut(document);
    }
    if (source.pieces.empty()) continue;
    batch.samples.push_back(std::move(source.pieces.front()));
    source.pieces.pop_front();
  }
  if (batch.samples.empty()) return std::nullopt;
  batch.flips.assign(batch.samples.size(), 0);
  PendingBatch pending = pending_batch(plan.id, plan.image_slots, std::move(batch),
                                       plan.image_slots ? &transform_ : nullptr);
  Step step;
  step.shape = pending.shape;
  if (step.shape.num_images) {
    step.images = context_.allocate(step.shape);
    for (std::int64_t i = 0; i < step.shape.num_images; ++i)
      pending.write_image(i, step.images->data() + i * step.shape.numel_each());
  }
  step.batches.push_back(std::move(pending.batch));
  return step;
}

}  // namespace floe::data
