#include "floe/plan/report.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "floe/models/build.h"
#include "floe/optim/optimizers/registry.h"
#include "floe/strategy/strategy_options.h"
#include "floe/train/phases/phases.h"

namespace floe::plan {

using strategy::name_of;  // of torch's dtypes

namespace {

// Optimizer state and average of one group: of what trains now, of what rests beside it
// on the device (or, with cpu_offload, wherever the slices are), and of what is in the
// store, masters included.
struct GroupState {
  std::int64_t active = 0, resting = 0, store = 0;
};

GroupState state_of(const shard::ShardPlan& plan, const shard::PlannedGroup& group,
                    const PlanSubject& subject) {
  const auto bytes = [&](c10::ScalarType dtype) {
    return group.layout.slice_numel() * static_cast<std::int64_t>(c10::elementSize(dtype));
  };
  const auto resting_place = [&](GroupState& state, shard::Rest rest) -> std::int64_t& {
    return rest == shard::Rest::keep || group.offloaded ? state.resting : state.store;
  };
  const std::int64_t masters = bytes(group.master_dtype);
  GroupState state;
  for (std::size_t set = 0; set < plan.sets.size(); ++set) {
    if (!group.trains_in(set)) continue;
    const shard::Rest rest = plan.sets[set].rest;
    if (set == plan.active_set)
      state.active += subject.values_per_element * masters;
    else if (rest != shard::Rest::drop)
      resting_place(state, rest) += subject.values_per_element * masters;
  }
  if (subject.averages && group.trainable)
    (group.active ? state.active : resting_place(state, group.rest)) += bytes(at::kFloat);
  if (group.masters_away() && group.rest == shard::Rest::offload) state.store += masters;
  return state;
}

Holdings holdings_of(const shard::ShardPlan& plan, const PlanSubject& subject) {
  Holdings holdings;
  holdings.held = plan.held();
  holdings.held.optimizer_state = holdings.held.resting_state = 0;
  for (const shard::PlannedGroup& group : plan.groups) {
    const std::int64_t slice = group.slice_bytes();
    const std::int64_t gradient = group.active ? slice : 0;
    const GroupState state = state_of(plan, group, subject);
    holdings.held.optimizer_state += state.active;
    holdings.held.resting_state += state.resting;
    holdings.store += state.store;
    if (group.resident) holdings.resident += slice;
    if (!group.offloaded) continue;
    holdings.host_between_steps += slice + state.active + state.resting;
    holdings.host_peak += slice + state.active + state.resting + gradient;
  }
  return holdings;
}

// Leaves the plan at the set that needs most.
std::vector<PhaseReport> phases_of(shard::ShardPlan& plan, const PlanSubject& subject) {
  if (plan.sets.size() == 1) return {};
  std::vector<PhaseReport> phases;
  std::size_t most = 0;
  for (std::size_t set = 0; set < plan.sets.size(); ++set) {
    plan.activate(set);
    PhaseReport phase{plan.sets[set], 0, holdings_of(plan, subject), plan.moved()};
    for (const shard::PlannedParameter& parameter : plan.parameters)
      if (parameter.trains_in(set)) phase.trainable_numel += parameter.numel;
    if (!phases.empty() && phase.holdings.held.peak() > phases[most].holdings.held.peak())
      most = set;
    phases.push_back(std::move(phase));
  }
  plan.activate(most);
  return phases;
}

// A subject that still lacks its model and what of it trains.
PlanSubject bare_subject(const PlanSettings& settings) {
  const optim::OptimizerConfig& optimizer = settings.train.optimizer;
  PlanSubject subject;
  subject.strategy = settings.strategy;
  subject.optimizer = optim::optimizer_type(optimizer.type).name;
  subject.values_per_element = optim::num_moments(optimizer);
  subject.averages = settings.train.ema.decay.has_value();
  subject.world_size = settings.world_size();
  subject.passes_per_update = train::passes_per_update(settings.train);
  return subject;
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
  PlanSubject subject = bare_subject(config);
  subject.type = config.model.type;
  subject.model = std::make_shared<models::Transformer>(transformer_size_of(config.model));
  subject.trainable = trainable_patterns(config);
  return subject;
}

PlanSubject subject_of(const RunPlanConfig& config) {
  const models::BuiltModel built = models::build_model(config.model, 0);
  PlanSubject subject = bare_subject(config);
  subject.type = built.model->info().kind;
  subject.model = built.module;
  if (config.phases.size() > 1)
    subject.sets = train::parameter_sets(config.phases);
  else
    subject.trainable = config.phases.empty() ? config.train.trainable : config.phases[0].train;
  return subject;
}

PlanReport make_report(PlanSubject planned) {
  PlanReport report;
  report.subject = std::move(planned);
  const PlanSubject& subject = report.subject;

  shard::ShardOptions options = strategy::shard_options_of(subject.strategy);
  options.passes_per_update = subject.passes_per_update;
  options.trainable = subject.trainable;
  options.sets = subject.sets;
  const shard::Policy policy = strategy::policy_of(subject.strategy, *subject.model);
  report.plan = strategy::in_words_of_config(
      [&] { return make_plan(*subject.model, policy, options, subject.world_size); });
  report.phases = phases_of(report.plan, subject);
  report.holdings = holdings_of(report.plan, subject);
  report.moved = report.plan.moved();
  report.padding = padding_of(report.plan);
  for (const shard::PlannedParameter& parameter : report.plan.parameters)
    (parameter.trainable ? report.trainable_numel : report.frozen_numel) += parameter.numel;

  options.strategy = shard::Strategy::no_shard;
  options.frozen.residency = shard::Residency::sharded;
  options.cpu_offload = false;
  shard::ShardPlan whole = make_plan(*subject.model, policy, options, subject.world_size);
  whole.activate(report.plan.active_set);
  report.unsharded_holdings = holdings_of(whole, subject);
  report.unsharded_moved = whole.moved();
  return report;
}

// ---- for programs ----

namespace {

using Json = nlohmann::ordered_json;

Json group_json(const shard::ShardPlan& plan, const shard::PlannedGroup& group) {
  Json units = Json::array(), parameters = Json::array();
  for (const std::size_t u : group.units) units.push_back(plan.units[u].name);
  for (const std::size_t p : group.parameters) parameters.push_back(plan.parameters[p].name);
  return {{"name", group.name},
          {"units", units},
          {"trainable", group.trainable},
          {"resident", group.resident},
          {"offloaded", group.offloaded},
          {"strategy", name_of(group.strategy)},
          {"shard_size", group.shard_size},
          {"replicas", group.replicas},
          {"numel", group.layout.numel()},
          {"padded_numel", group.layout.padded_numel()},
          {"storage_dtype", name_of(group.storage_dtype)},
          {"param_dtype", name_of(group.param_dtype)},
          {"reduce_dtype", name_of(group.reduce_dtype)},
          {"gathered_bytes", group.gathered_bytes()},
          {"moved_bytes", group.moved_bytes()},
          {"shard_bytes", group.slice_bytes()},
          {"needed_in_backward", group.needed_in_backward},
          {"parameters", parameters}};
}

Json holds_json(const Holdings& holdings) {
  const shard::HeldBytes& held = holdings.held;
  return {{"trainable_shard_bytes", held.trainable_slices},
          {"frozen_shard_bytes", held.frozen_slices - holdings.resident},
          {"resident_bytes", holdings.resident},
          {"optimizer_state_bytes", held.optimizer_state},
          {"gradient_shard_bytes", held.gradient_slices},
          {"gathered_pool_bytes", held.pool},
          {"gradient_buffer_bytes", held.gradient_buffers},
          {"between_steps_bytes", held.between_steps()},
          {"peak_bytes", held.peak()},
          {"host_between_steps_bytes", holdings.host_between_steps},
          {"host_peak_bytes", holdings.host_peak}};
}

Json moves_json(const shard::MovedBytes& moved) {
  return {{"all_gathers", moved.gathers},
          {"all_gathered_bytes", moved.gathered},
          {"reduce_scatters", moved.reduce_scatters},
          {"reduce_scattered_bytes", moved.reduce_scattered},
          {"all_reduces", moved.all_reduces},
          {"all_reduced_bytes", moved.all_reduced}};
}

Json phase_json(const PhaseReport& phase) {
  Json holds = holds_json(phase.holdings);
  holds["resting_shard_bytes"] = phase.holdings.held.resting_slices;
  holds["resting_state_bytes"] = phase.holdings.held.resting_state;
  holds["host_store_bytes"] = phase.holdings.store;
  return {{"name", phase.set.name},
          {"optimizer_state", name_of(phase.set.rest)},
          {"trainable_numel", phase.trainable_numel},
          {"holds", std::move(holds)},
          {"moves", moves_json(phase.moved)}};
}

}  // namespace

Json to_json(const PlanReport& report) {
  const shard::ShardPlan& plan = report.plan;
  Json units = Json::array(), groups = Json::array();
  for (const shard::PlannedUnit& unit : plan.units) {
    Json names = Json::array();
    for (const std::size_t g : unit.groups) names.push_back(plan.groups[g].name);
    units.push_back({{"name", unit.name}, {"class", unit.class_name}, {"groups", names}});
  }
  for (const shard::PlannedGroup& group : plan.groups) groups.push_back(group_json(plan, group));
  Json json{{"world_size", plan.world_size},
            {"model",
             {{"type", report.subject.type},
              {"numel", report.trainable_numel + report.frozen_numel},
              {"trainable_numel", report.trainable_numel},
              {"frozen_numel", report.frozen_numel}}},
            {"strategy", name_of(report.subject.strategy.sharding)},
            {"passes_per_update", plan.passes_per_update},
            {"accumulate", name_of(plan.accumulates())},
            {"units", units},
            {"groups", groups},
            {"padding", {{"groups", report.padding.num_groups}, {"numel", report.padding.numel}}},
            {"holds", holds_json(report.holdings)},
            {"moves", moves_json(report.moved)},
            {"unsharded",
             {{"holds", holds_json(report.unsharded_holdings)},
              {"moves", moves_json(report.unsharded_moved)}}}};
  if (report.phases.empty()) return json;
  json["peak_phase"] = plan.sets[plan.active_set].name;
  for (const PhaseReport& phase : report.phases) json["phases"].push_back(phase_json(phase));
  return json;
}

}  // namespace floe::plan
