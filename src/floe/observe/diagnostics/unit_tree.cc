#include "floe/observe/diagnostics/unit_tree.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "floe/core/bytes.h"
#include "floe/core/table.h"
#include "floe/nn/module.h"
#include "floe/strategy/strategy_options.h"

namespace floe::diagnostics {
namespace {

using shard::PlannedGroup;
using shard::PlannedUnit;
using shard::ShardPlan;

struct UnitNumel {
  std::int64_t all = 0, trainable = 0;
};

// Of the groups whose home the unit is.
UnitNumel numel_of(const ShardPlan& plan, std::size_t unit) {
  UnitNumel numel;
  for (const std::size_t g : plan.units[unit].groups) {
    const PlannedGroup& group = plan.groups[g];
    if (group.units.front() != unit) continue;
    numel.all += group.layout.numel();
    if (group.trainable) numel.trainable += group.layout.numel();
  }
  return numel;
}

// "10 DecoderLayer, 2 Embedding", in order of first appearance.
template <class Names>
std::string counted(const Names& names) {
  std::vector<std::pair<std::string, int>> counts;
  for (const std::string& name : names) {
    const auto known = std::find_if(counts.begin(), counts.end(),
                                    [&](const auto& count) { return count.first == name; });
    if (known == counts.end())
      counts.emplace_back(name, 1);
    else
      known->second += 1;
  }
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts) parts.push_back(str(count, " ", name));
  return join(parts);
}

bool is_checkpointed(const ShardPlan& plan, const PlannedUnit& unit) {
  return std::any_of(plan.checkpointed.begin(), plan.checkpointed.end(),
                     [&](const auto& checkpoint) { return checkpoint.module == unit.module; });
}

std::int64_t total_numel(const ShardPlan& plan) {
  return std::accumulate(
      plan.parameters.begin(), plan.parameters.end(), std::int64_t{0},
      [](std::int64_t sum, const shard::PlannedParameter& p) { return sum + p.numel; });
}

// "phase 'a' trains 12.6 k parameters in 3 units; while it rests its state is offloaded"
std::string set_line(const ShardPlan& plan, std::size_t set) {
  std::int64_t numel = 0;
  for (const shard::PlannedParameter& parameter : plan.parameters)
    if (parameter.trains_in(set)) numel += parameter.numel;
  const auto num_units =
      std::count_if(plan.units.begin(), plan.units.end(), [&](const PlannedUnit& unit) {
        return std::any_of(unit.groups.begin(), unit.groups.end(),
                           [&](std::size_t g) { return plan.groups[g].trains_in(set); });
      });
  const shard::Rest rest = plan.sets[set].rest;
  const char* does = rest == shard::Rest::keep      ? "stays on the device"
                     : rest == shard::Rest::offload ? "goes to host memory"
                                                    : "is dropped";
  return str("phase '", plan.sets[set].name, "' trains ", format_count(numel), " parameters in ",
             num_units, num_units == 1 ? " unit" : " units", "; while it rests its state ", does);
}

void note_units(const ShardPlan& plan, std::vector<std::string>& notes) {
  const std::int64_t all = total_numel(plan);
  if (plan.units.size() == 1) {
    notes.emplace_back(
        "the root is the only unit, so the whole model is gathered at once and sharding saves "
        "memory between steps only; name the class of the model's layers in strategy.units");
    return;
  }
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const std::int64_t numel = numel_of(plan, u).all;
    if (2 * numel <= all) continue;
    notes.push_back(str("unit '", plan.units[u].label(), "' (", plan.units[u].class_name,
                        ") holds ", percent(numel, all),
                        " of the model and is gathered as one; "
                        "name the modules inside it in strategy.units"));
  }
}

void note_ties(const ShardPlan& plan, std::vector<std::string>& notes) {
  for (const PlannedGroup& group : plan.groups)
    for (const std::size_t p : group.parameters) {
      const shard::PlannedParameter& parameter = plan.parameters[p];
      if (parameter.other_names.empty()) continue;
      std::vector<std::string> units;
      for (const std::size_t u : group.units) units.push_back(plan.units[u].label());
      notes.push_back(str("'", parameter.name, "' is tied to ", join(parameter.other_names),
                          ": it is stored, gathered and updated once",
                          units.size() > 1 ? str(", for the units ", join(units)) : ""));
    }
}

// Slices are equal in bytes; what differs is how much of them is padding.
void note_uneven(const ShardPlan& plan, std::vector<std::string>& notes) {
  const auto ranks = rank_bytes(plan);
  const auto less = [](const RankBytes& a, const RankBytes& b) {
    return a.used_bytes() < b.used_bytes();
  };
  const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end(), less);
  if (10 * least->used_bytes() >= 9 * most->used_bytes()) return;
  notes.push_back(str("slices are uneven: of ", format_bytes(most->held_bytes()),
                      " that every rank holds, rank ", most->rank, " uses ",
                      format_bytes(most->used_bytes()), " and rank ", least->rank, " ",
                      format_bytes(least->used_bytes()),
                      "; groups are small for this number of ranks, so let units be larger"));
}

}  // namespace

std::vector<RankBytes> rank_bytes(const shard::ShardPlan& plan) {
  std::vector<RankBytes> ranks(static_cast<std::size_t>(plan.world_size));
  for (int rank = 0; rank < plan.world_size; ++rank) {
    RankBytes& bytes = ranks[static_cast<std::size_t>(rank)];
    bytes.rank = rank;
    for (const shard::PlannedGroup& group : plan.groups) {
      std::int64_t real = 0;
      for (const shard::Piece& piece : group.layout.pieces(rank % group.shard_size))
        real += piece.numel;
      const auto element = static_cast<std::int64_t>(c10::elementSize(group.storage_dtype));
      (group.trainable ? bytes.trainable_bytes : bytes.frozen_bytes) += group.slice_bytes();
      bytes.padding_bytes += (group.layout.slice_numel() - real) * element;
    }
  }
  return ranks;
}

std::vector<std::string> tree_lines(const ShardPlan& plan, std::size_t top_k) {
  std::vector<std::string> lines, classes, checkpointed;
  for (const PlannedUnit& unit : plan.units)
    classes.push_back(unit.name.empty() ? "root" : unit.class_name);
  lines.push_back(
      str(plan.units.size(), plan.units.size() == 1 ? " unit: " : " units: ", counted(classes)));
  for (const auto& checkpoint : plan.checkpointed)
    checkpointed.push_back(nn::class_name(*checkpoint.module));
  if (checkpointed.empty())
    lines.emplace_back(
        "no module is checkpointed: activations of all of them are kept for backward");
  else
    lines.push_back(str(checkpointed.size(), " checkpointed modules: ", counted(checkpointed)));

  std::vector<std::size_t> order(plan.units.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return numel_of(plan, a).all > numel_of(plan, b).all;
  });
  order.resize(std::min(order.size(), top_k));
  std::vector<std::string> largest;
  for (const std::size_t u : order) {
    const UnitNumel numel = numel_of(plan, u);
    largest.push_back(str(plan.units[u].label(), " (", plan.units[u].class_name, ", ",
                          format_count(numel.all), " parameters, ", format_count(numel.trainable),
                          " train)"));
  }
  lines.push_back(str("the largest: ", join(largest)));
  for (std::size_t set = 0; set < plan.sets.size() && plan.sets.size() > 1; ++set)
    lines.push_back(set_line(plan, set));
  if (plan.passes_per_update > 1 && plan.world_size > 1 && !plan.accumulate)
    lines.push_back(
        str("gradients of the ", plan.passes_per_update, " passes of an update add up ",
            plan.accumulates() == shard::Accumulate::local ? "whole on each rank" : "in slices",
            ", as memory and dtypes allow (strategy.accumulate is not set)"));
  return lines;
}

std::vector<std::string> plan_notes(const ShardPlan& plan) {
  std::vector<std::string> notes;
  const bool trains = std::any_of(plan.groups.begin(), plan.groups.end(),
                                  [](const PlannedGroup& group) { return group.trainable; });
  if (!trains)
    notes.emplace_back("nothing trains: every parameter is frozen; look at train.trainable");
  for (std::size_t set = 0; set < plan.sets.size(); ++set)
    if (trains && std::none_of(plan.groups.begin(), plan.groups.end(),
                               [&](const PlannedGroup& group) { return group.trains_in(set); }))
      notes.push_back(str("nothing trains in phase '", plan.sets[set].name, "': look at phases"));
  note_units(plan, notes);
  note_ties(plan, notes);
  note_uneven(plan, notes);
  return notes;
}

nlohmann::ordered_json units_json(const ShardPlan& plan) {
  auto units = nlohmann::ordered_json::array();
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    auto groups = nlohmann::ordered_json::array();
    for (const std::size_t g : plan.units[u].groups) {
      const PlannedGroup& group = plan.groups[g];
      if (group.units.front() != u) continue;
      groups.push_back({{"name", group.name},
                        {"trainable", group.trainable},
                        {"resident", group.resident},
                        {"numel", group.layout.numel()},
                        {"shard_bytes", group.slice_bytes()},
                        {"dtype", strategy::name_of(group.storage_dtype)}});
    }
    units.push_back({{"name", plan.units[u].label()},
                     {"class", plan.units[u].class_name},
                     {"checkpointed", is_checkpointed(plan, plan.units[u])},
                     {"groups", std::move(groups)}});
  }
  return units;
}

}  // namespace floe::diagnostics
