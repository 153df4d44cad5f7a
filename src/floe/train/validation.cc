#include "floe/train/validation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "floe/core/log.h"
#include "floe/core/str.h"
#include "floe/data/shards/shard_list.h"
#include "floe/observe/metrics/progress.h"
#include "floe/packing/packing.h"
#include "floe/train/reporting/data_report.h"
#include "floe/train/setup/run_setup.h"
#include "floe/train/step/precision.h"

namespace floe::train {
namespace {

// The data of the run with its held-out shards in place of those it trains on.
DataConfig held_out_data(const RunConfig& config) {
  const ValidationConfig& validation = config.train.validation;
  DataConfig data = config.data;
  const std::size_t count = data.sources().size();
  for (const data::DataSource* source : data::sources_of(data)) {
    const std::string shards = validation.shards.of(source->id(), count);
    if (shards.empty())
      source->remove(data);
    else
      source->files(data) = shards;
  }
  data.batches = validation.batches;
  return data;
}

data::DataKeys held_out_keys(const ShardsBySource& shards) {
  const std::string all = "train.validation.shards";
  data::DataKeys keys;
  for (const auto& source : data::data_sources())
    keys.by_source[source->id()] =
        shards.by_source.contains(source->id()) ? all + "." + source->id() : all;
  keys.batches = "train.validation.batches";
  return keys;
}

// What a run trains on says nothing about what it has not seen.
void warn_of_trained_shards(const data::HeldOut& held_out, const DataConfig& trained,
                            const data::DataKeys& keys) {
  for (const auto& [source, shards] : held_out.shards()) {
    const auto all = data::expand_shards(source->files(trained));
    const std::set<std::string> names(all.begin(), all.end());
    const auto both = std::count_if(shards.begin(), shards.end(),
                                    [&](const std::string& name) { return names.contains(name); });
    if (both > 0)
      log::warn(keys.of(*source), ": the run also trains on ", both, " of its ",
                counted(static_cast<std::int64_t>(shards.size()), "shard"),
                ", so the loss there is not that of held-out data");
  }
}

}  // namespace

Validation::Validation(const RunConfig& config, const models::BuiltModel& built,
                       shard::Engine& engine, std::vector<eval::TaskData> tasks,
                       const std::atomic<bool>& stop)
    : config_(config),
      built_(built),
      engine_(engine),
      stop_(stop),
      held_out_(held_out_data(config)),
      context_(loader_context(config, built, engine.world())),
      options_{config.train.validation.max_batches, &stop} {
  context_.keys = held_out_keys(config.train.validation.shards);
  if (config.train.validation.holds_data_out()) require_samples();
  if (!tasks.empty()) tasks_.emplace(config, built, engine, std::move(tasks), stop);
}

// What is not there is said now, not after the first thousand steps.
void Validation::require_samples() {
  data::HeldOut held_out(held_out_, context_, options_);
  comm::World& world = engine_.world();
  if (held_out_.batches) {
    const data::Loader loader(held_out_, context_);
    return warn_of_same_batches(loader, world, context_.keys.batches);
  }
  if (world.rank() == 0) warn_of_trained_shards(held_out, config_.data, context_.keys);
  held_out.probe();
  SourceCounts own;
  for (const auto& [source, counts] : held_out.counts()) own.emplace_back(source->id(), counts);
  const SourceCounts all = sum_over_ranks(own, world);
  if (engine_.any_rank_has(stop_)) return;  // some rank may not have read to its end
  std::size_t i = 0;
  for (const auto& [source, shards] : held_out.shards()) {
    const data::Counts& counts = all[i++].second;
    require<ConfigError>(counts.kept > 0, context_.keys.of(*source), ": the ",
                         counted(static_cast<std::int64_t>(shards.size()), "shard"),
                         " held no usable sample. ", data::why_unused(counts, source->id()));
  }
}

bool Validation::evaluate(data::HeldOut& held_out, std::vector<double>& sums) {
  models::InputOptions options;
  options.device = engine_.world().device();
  options.dtype = compute_dtype(config_);
  options.num_sources = static_cast<std::int64_t>(data::num_sources());
  std::optional<observe::CountLine> progress;
  if (engine_.world().rank() == 0) progress.emplace("validation", "batch");
  std::int64_t done = 0;
  for (;;) {
    const auto step = held_out.next();
    if (engine_.any_rank_has(stop_)) return false;
    if (!engine_.any_rank_has(step.has_value())) return true;
    if (step) {
      const auto input = models::prepare(*built_.model, packing::pack(*step), options);
      const at::Tensor losses =
          std::get<1>(models::training_loss(*built_.model, input)).to(at::kCPU, at::kDouble);
      const std::size_t num_sources = data::num_sources();
      for (std::size_t s = 0; s < num_sources; ++s) {
        sums[s] += losses.const_data_ptr<double>()[s];
        sums[num_sources + s] += static_cast<double>(input->labels_of_source[s]);
      }
    } else {
      engine_.empty_forward();
    }
    if (progress) progress->update(++done);
  }
}

std::optional<Validation::Metrics> Validation::run() {
  const at::NoGradGuard no_gradients;
  built_.module->eval();
  auto metrics =
      config_.train.validation.holds_data_out() ? losses() : std::optional<Metrics>(Metrics());
  if (metrics && tasks_) {
    const auto scores = tasks_->run();
    if (scores)
      metrics->insert(metrics->end(), scores->begin(), scores->end());
    else
      metrics.reset();
  }
  built_.module->train();
  if (!metrics && engine_.world().rank() == 0)
    log::info("validation: stopped by a signal; its losses are left out");
  return metrics;
}

std::optional<Validation::Metrics> Validation::losses() {
  data::HeldOut held_out(held_out_, context_, options_);
  std::vector<double> sums(2 * data::num_sources(), 0.0);
  if (!evaluate(held_out, sums)) return std::nullopt;
  for (const auto& [source, counts] : held_out.counts())
    if (counts.num_damaged() || counts.bad_shards)
      log::warn(context_.keys.of(*source), ": ", counts.text());

  const at::Tensor on_device = at::tensor(sums, at::kDouble).to(engine_.world().device());
  engine_.world().group()->all_reduce(on_device, comm::Reduce::sum, "validation").wait();
  const at::Tensor all = engine_.world().read(on_device);
  const auto* totals = all.const_data_ptr<double>();
  return metrics_of({totals, totals + sums.size()});
}

Validation::Metrics Validation::metrics_of(const std::vector<double>& totals) const {
  const std::vector<double> weights = loss_weights(config_.data);
  const std::vector<std::string> sources = held_out_.sources();
  Metrics values;
  double weighted = 0;
  for (const auto& source : data::data_sources()) {
    const std::string& name = source->id();
    const auto s = static_cast<std::size_t>(source->number());
    const double labels = totals[data::num_sources() + s];
    if (labels == 0) {
      const bool is_wanted = std::find(sources.begin(), sources.end(), name) != sources.end();
      if (is_wanted && engine_.world().rank() == 0)
        log::warn(context_.keys.of(*source),
                  ": no token with a label was found, so there is no val_loss_", name);
      continue;
    }
    const double loss = totals[s] / labels;
    values.emplace_back("val_loss_" + name, loss);
    values.emplace_back("val_perplexity_" + name, std::exp(loss));
    weighted += weights[s] * loss;
  }
  if (!values.empty())
    values.emplace_back("val_loss", weighted);
  else if (held_out_.batches && engine_.world().rank() == 0)
    log::warn(context_.keys.batches, ": no token has a label, so there is no val_loss");
  return values;
}

std::unique_ptr<Validation> make_validation(const RunConfig& config,
                                            const models::BuiltModel& built, shard::Engine& engine,
                                            std::vector<eval::TaskData> tasks,
                                            const std::atomic<bool>& stop) {
  if (!config.train.validation.every_steps) return nullptr;
  return std::make_unique<Validation>(config, built, engine, std::move(tasks), stop);
}

}  // namespace floe::train
