#include "floe/data/loader/held_out.h"

#include <algorithm>
#include <exception>
#include <latch>

#include "floe/core/log.h"
#include "floe/data/loader/loader_setup.h"

namespace floe::data {

struct HeldOut::OfSource {
  OfSource(SourcePlan p, const DataConfig& config, const LoaderContext& context,
           const std::atomic<bool>* stop)
      : plan(std::move(p)),
        options{std::make_shared<const std::vector<std::string>>(plan.shards), config.rules,
                plan.rules.open, stop},
        walker(options, every_nth_shard(context.rank, context.world, plan.shards.size())) {}

  // The next raw sample of the shards; nothing at their end, or when reading was stopped.
  std::optional<RawSample> read() {
    std::optional<FoundSample> found;
    while (!found && !walker.ended() && !(options.stop && options.stop->load())) {
      found = walker.next();
      for (const BadShard& bad : walker.take_bad_shards()) {
        ++counts.bad_shards;
        log::warn("validation: ", plan.shards[static_cast<std::size_t>(bad.shard)], " of ",
                  plan.shards_key, ": ", bad.what, "; what comes before it counts");
      }
      counts.shards += walker.take_num_opened();
    }
    if (!found) return std::nullopt;
    return std::move(found->raw);
  }

  // A document that is longer than a batch of text, or than the model has positions, comes in
  // pieces, each a sequence of its own, as in training.
  void cut(const Sample& document) {
    const auto all = static_cast<std::int64_t>(document.ids.size());
    const std::int64_t most = std::min(plan.per_batch, plan.batch_rule.longest);
    for (std::int64_t begin = 0; begin < all; begin += most)
      pieces.push_back(piece_of(document, begin, std::min(all - begin, most)));
  }

  SourcePlan plan;
  std::deque<Sample> pieces;  // of text, that wait for a batch
  ReaderOptions options;
  ShardWalker walker;
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

std::optional<Batch> HeldOut::next() {
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
    if (auto batch = next_of(*sources_[at_])) {
      ++num_given_;
      return batch;
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

std::vector<std::pair<const DataSource*, Counts>> HeldOut::counts() const {
  std::vector<std::pair<const DataSource*, Counts>> counts;
  for (const auto& source : sources_) counts.emplace_back(source->plan.source, source->counts);
  return counts;
}

std::vector<std::pair<const DataSource*, std::vector<std::string>>> HeldOut::shards() const {
  std::vector<std::pair<const DataSource*, std::vector<std::string>>> shards;
  for (const auto& source : sources_) shards.emplace_back(source->plan.source, source->plan.shards);
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
        outcomes[i] = source.plan.rules.maker->make(raws[i]);
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

std::optional<Batch> HeldOut::next_of(OfSource& source) {
  const SourcePlan& plan = source.plan;
  const auto full = [&](const SampleBatch& batch) {
    if (plan.batch_rule.samples)
      return static_cast<std::int64_t>(batch.samples.size()) >= plan.per_batch;
    std::int64_t tokens = 0;
    for (const Sample& sample : batch.samples)
      tokens += static_cast<std::int64_t>(sample.ids.size());
    return tokens >= plan.per_batch;
  };
  SampleBatch samples;
  for (bool goes_on = true; goes_on && !full(samples);) {
    if (plan.batch_rule.samples) {  // as many as are missing
      goes_on = read(source, plan.per_batch - static_cast<std::int64_t>(samples.samples.size()),
                     samples.samples);
      continue;
    }
    if (source.pieces.empty()) {
      std::vector<Sample> documents;
      goes_on = read(source, 1, documents);
      for (const Sample& document : documents) source.cut(document);
    }
    if (source.pieces.empty()) continue;
    samples.samples.push_back(std::move(source.pieces.front()));
    source.pieces.pop_front();
  }
  if (samples.samples.empty()) return std::nullopt;
  samples.flips.assign(samples.samples.size(), 0);
  PendingBatch pending = pending_batch(plan.source->number(), plan.rules.image_slots,
                                       std::move(samples), transform_.size());
  Batch batch;
  batch.shape = pending.shape;
  if (batch.shape.num_images) {
    batch.images = context_.allocate(batch.shape);
    for (std::int64_t i = 0; i < batch.shape.num_images; ++i)
      write_image(pending, i, transform_, batch.images->data() + i * batch.shape.numel_each());
  }
  batch.sources.push_back(std::move(pending.sequences));
  return batch;
}

}  // namespace floe::data
