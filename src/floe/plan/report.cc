#include "floe/plan/report.h"

#include <utility>

#include "floe/plan/strategy_options.h"

namespace floe::plan {
namespace {

Holdings holdings_of(const shard::ShardPlan& plan, int values_per_element) {
  Holdings holdings;
  holdings.held = plan.held();
  holdings.held.optimizer_state = 0;
  for (const shard::PlannedGroup& group : plan.groups) {
    const std::int64_t slice = group.shard_bytes();
    const std::int64_t state = group.trainable ? values_per_element * slice : 0;
    const std::int64_t gradient = group.trainable ? slice : 0;
    holdings.held.optimizer_state += state;
    if (group.resident) holdings.resident += slice;
    if (!group.offloaded) continue;
    holdings.host_between_steps += slice + state;
    holdings.host_peak += slice + state + gradient;
  }
  return holdings;
}

Padding padding_of(const shard::ShardPlan& plan) {
  Padding padding;
  for (const shard::PlannedGroup& group : plan.groups) {
    const std::int64_t extra = group.layout.padded_numel() - group.layout.numel();
    padding.num_groups += extra > 0;
    padding.numel += extra;
  }
  return padding;
}

}  // namespace

models::TransformerSize transformer_size_of(const ModelConfig& model) {
  models::TransformerSize size;
  size.vocab = model.vocab;
  size.dim = model.dim;
  size.layers = model.layers;
  size.heads = model.heads;
  size.context = model.context;
  size.mlp_ratio = model.mlp_ratio;
  size.dropout = model.dropout;
  size.tied = model.tied;
  size.adapter = model.adapter;
  return size;
}

std::optional<std::vector<std::string>> trainable_patterns(const PlanConfig& config) {
  if (config.train.trainable) return config.train.trainable;
  if (config.model.adapter > 0) return std::vector<std::string>{"*.adapter.*"};
  return std::nullopt;
}

PlanSubject subject_of(const PlanConfig& config) {
  PlanSubject subject;
  subject.type = config.model.type;
  subject.model = std::make_shared<models::Transformer>(transformer_size_of(config.model));
  subject.trainable = trainable_patterns(config);
  subject.strategy = config.strategy;
  if (config.train.optimizer.type == OptimizerConfig::Type::sgd) subject.optimizer = "sgd";
  subject.values_per_element = config.train.optimizer.num_moments();
  subject.world_size = config.world_size();
  return subject;
}

PlanReport make_report(PlanSubject planned) {
  PlanReport report;
  report.subject = std::move(planned);
  const PlanSubject& subject = report.subject;

  shard::ShardOptions options = shard_options_of(subject.strategy);
  options.trainable = subject.trainable;
  const shard::Policy policy = policy_of(subject.strategy, *subject.model);
  report.plan = make_plan(*subject.model, policy, options, subject.world_size);
  report.holdings = holdings_of(report.plan, subject.values_per_element);
  report.moved = report.plan.moved();
  report.padding = padding_of(report.plan);
  for (const shard::PlannedParameter& parameter : report.plan.parameters)
    (parameter.trainable ? report.trainable_numel : report.frozen_numel) += parameter.numel;

  options.strategy = shard::Strategy::no_shard;
  options.frozen.residency = shard::Residency::sharded;
  options.cpu_offload = false;
  const shard::ShardPlan whole = make_plan(*subject.model, policy, options, subject.world_size);
  report.unsharded_holdings = holdings_of(whole, subject.values_per_element);
  report.unsharded_moved = whole.moved();
  return report;
}

}  // namespace floe::plan
