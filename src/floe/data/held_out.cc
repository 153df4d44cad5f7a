#include "floe/data/held_out.h"

#include <latch>

#include "floe/core/log.h"
#include "floe/data/source_plan.h"

namespace floe::data {

struct HeldOut::OfSource {
  OfSource(SourcePlan p, const DataConfig& config, const LoaderContext& context)
      : plan(std::move(p)), next_shard(context.rank) {
    options.shards = std::make_shared<const std::vector<std::string>>(plan.shards);
    options.rules = config.rules;
    options.open = plan.open;
    const std::int64_t world = context.world;
    walker.emplace(options, [this, world]() -> std::optional<ShardWalker::Opened> {
      if (next_shard >= static_cast<std::int64_t>(plan.shards.size())) return std::nullopt;
      const std::int64_t shard = std::exchange(next_shard, next_shard + world);
      return ShardWalker::Opened{static_cast<std::uint32_t>(shard), {shard, 0}, true};
    });
  }

  // The next raw sample of the shards; nothing at their end.
  std::optional<RawSample> read() {
    while (!walker->ended()) {
      if (auto found = walker->next()) return std::move(found->raw);
      for (const BadShard& bad : walker->take_bad_shards())
        log::warn("validation: ", plan.shards[static_cast<std::size_t>(bad.shard)], ": ", bad.what,
                  "; what comes before it counts");
    }
    return std::nullopt;
  }

  SourcePlan plan;
  ReaderOptions options;
  std::int64_t next_shard;
  std::optional<ShardWalker> walker;
};

HeldOut::HeldOut(const DataConfig& config, const LoaderContext& context,
                 std::optional<std::int64_t> max_batches)
    : context_(context),
      transform_(context.transform),
      max_batches_(max_batches),
      pool_(static_cast<int>(config.threads)) {
  if (config.batches) {
    prepared_ = std::make_unique<Loader>(config, context);
    return;
  }
  for (SourcePlan& plan : source_plans(config, context_, transform_))
    sources_.push_back(std::make_unique<OfSource>(std::move(plan), config, context_));
}

HeldOut::~HeldOut() = default;

std::optional<Step> HeldOut::next() {
  if (prepared_) {
    if (max_batches_ && num_given_ == *max_batches_) return std::nullopt;
    if (num_given_ == prepared_->steps_per_epoch()) return std::nullopt;
    ++num_given_;
    return prepared_->next();
  }
  for (; at_ < sources_.size(); ++at_, num_given_ = 0) {
    if (max_batches_ && num_given_ == *max_batches_) continue;
    if (auto step = next_of(*sources_[at_])) {
      ++num_given_;
      return step;
    }
  }
  return std::nullopt;
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
  for (bool ended = false; !ended && !full(batch);) {
    // As many as are missing, decoded side by side.
    const std::int64_t missing =
        plan.rule.samples ? plan.per_batch - static_cast<std::int64_t>(batch.samples.size()) : 1;
    std::vector<RawSample> raws;
    while (static_cast<std::int64_t>(raws.size()) < missing) {
      auto raw = source.read();
      ended = !raw;
      if (ended) break;
      raws.push_back(std::move(*raw));
    }
    std::vector<Outcome> outcomes(raws.size());
    std::latch made(static_cast<std::ptrdiff_t>(raws.size()));
    for (std::size_t i = 0; i < raws.size(); ++i)
      pool_.submit([&, i] {
        outcomes[i] = plan.maker->make(raws[i]);
        made.count_down();
      });
    made.wait();
    for (Outcome& outcome : outcomes) {
      if (auto* sample = std::get_if<Sample>(&outcome))
        batch.samples.push_back(std::move(*sample));
      else
        num_bad_ += is_damage(std::get<Dropped>(outcome).reason);
    }
  }
  if (batch.samples.empty()) return std::nullopt;

  // A document that is longer than a batch of text is cut, as in training.
  if (!plan.rule.samples)
    for (Sample& sample : batch.samples)
      if (static_cast<std::int64_t>(sample.ids.size()) > plan.per_batch) {
        sample.ids.resize(static_cast<std::size_t>(plan.per_batch));
        sample.labels.resize(static_cast<std::size_t>(plan.per_batch));
      }
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
