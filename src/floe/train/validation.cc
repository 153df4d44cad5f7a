#include "floe/train/validation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <cmath>

#include "floe/core/log.h"
#include "floe/data/held_out.h"
#include "floe/data/packing.h"
#include "floe/train/precision.h"
#include "floe/train/run_setup.h"
#include "floe/train/step_sums.h"

namespace floe::train {
namespace {

// The data of the run with its held-out shards in place of those it trains on.
DataConfig held_out_data(const RunConfig& config) {
  const ValidationConfig& validation = config.train.validation;
  DataConfig data = config.data;
  const std::size_t count = data.sources().size();
  const auto replace = [&](auto& source, const char* name, auto member) {
    if (!source) return;
    const std::string shards = validation.shards.of(name, count);
    if (shards.empty())
      source.reset();
    else
      (*source).*member = shards;
  };
  replace(data.laion, "laion", &LaionConfig::shards);
  replace(data.mmc4, "mmc4", &Mmc4Config::shards);
  replace(data.text, "text", &TextConfig::files);
  data.batches = validation.batches;
  return data;
}

}  // namespace

Validation::Validation(const RunConfig& config, const models::BuiltModel& built,
                       shard::Engine& engine)
    : config_(config),
      built_(built),
      engine_(engine),
      held_out_(held_out_data(config)),
      context_(loader_context(config, built, engine.world())) {
  // Shards that are not there are said now, not after the first thousand steps.
  const data::HeldOut probe(held_out_, context_, config.train.validation.max_batches);
}

std::vector<std::pair<std::string, double>> Validation::run() {
  const at::NoGradGuard no_gradients;
  built_.module->eval();
  data::HeldOut held_out(held_out_, context_, config_.train.validation.max_batches);
  models::InputOptions options;
  options.device = engine_.world().device();
  options.dtype = compute_dtype(config_);
  options.num_sources = static_cast<std::int64_t>(kNumSources);

  std::vector<double> sums(2 * kNumSources, 0.0);  // losses, then labelled tokens
  auto step = held_out.next();
  while (engine_.any_rank_has(step.has_value())) {
    if (!step) {
      engine_.empty_forward();
      continue;
    }
    const auto input = models::prepare(*built_.model, data::pack(*step), options);
    const at::Tensor losses =
        std::get<1>(models::training_loss(*built_.model, input)).to(at::kCPU, at::kDouble);
    for (std::size_t s = 0; s < kNumSources; ++s) {
      sums[s] += losses.const_data_ptr<double>()[s];
      sums[kNumSources + s] += static_cast<double>(input->labels_of_source[s]);
    }
    step = held_out.next();
  }
  built_.module->train();
  if (held_out.num_bad() > 0)
    log::warn("validation: ", held_out.num_bad(), " damaged samples were left out");

  const at::Tensor on_device = at::tensor(sums, at::kDouble).to(options.device);
  engine_.world().group()->all_reduce(on_device, comm::Reduce::sum, "validation").wait();
  const at::Tensor all = engine_.world().read(on_device);
  const auto* totals = all.const_data_ptr<double>();
  const std::vector<double> weights = loss_weights(config_.data);
  std::vector<std::pair<std::string, double>> values;
  double weighted = 0;
  for (std::size_t s = 0; s < kNumSources; ++s) {
    if (totals[kNumSources + s] == 0) continue;
    const std::string name = data::name_of(static_cast<data::SourceId>(s));
    const double loss = totals[s] / totals[kNumSources + s];
    values.emplace_back("val_loss_" + name, loss);
    values.emplace_back("val_perplexity_" + name, std::exp(loss));
    weighted += weights[s] * loss;
  }
  if (!values.empty()) values.emplace_back("val_loss", weighted);
  return values;
}

std::unique_ptr<Validation> make_validation(const RunConfig& config,
                                            const models::BuiltModel& built,
                                            shard::Engine& engine) {
  if (!config.train.validation.every_steps) return nullptr;
  return std::make_unique<Validation>(config, built, engine);
}

}  // namespace floe::train
