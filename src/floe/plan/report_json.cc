#include <nlohmann/json.hpp>

#include "floe/plan/report.h"
#include "floe/plan/strategy_options.h"

namespace floe::plan {
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
          {"shard_bytes", group.shard_bytes()},
          {"needed_in_backward", group.needed_in_backward},
          {"parameters", parameters}};
}

Json holds_json(const Holdings& holdings) {
  const shard::HeldBytes& held = holdings.held;
  return {{"trainable_shard_bytes", held.trainable_shards},
          {"frozen_shard_bytes", held.frozen_shards - holdings.resident},
          {"resident_bytes", holdings.resident},
          {"optimizer_state_bytes", held.optimizer_state},
          {"gradient_shard_bytes", held.gradient_shards},
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
  holds["resting_shard_bytes"] = phase.holdings.held.resting_shards;
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
            {"strategy", name_of(shard_options_of(report.subject.strategy).strategy)},
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
