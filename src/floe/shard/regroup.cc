#include "floe/shard/regroup.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "floe/shard/fill.h"

namespace floe::shard {
namespace {

// The new plan has the group as it is.
bool stays(const PlannedGroup& before, const PlannedGroup& after) {
  return before.parameters == after.parameters && before.shard_size == after.shard_size &&
         before.storage_dtype == after.storage_dtype &&
         before.masters_away() == after.masters_away() && before.offloaded == after.offloaded;
}

}  // namespace

Regrouped regroup(std::vector<std::unique_ptr<FlatGroup>> before, const ShardPlan& plan,
                  Context& context, const ShardOptions* reread) {
  const at::AutoGradMode grad_off(false);
  Regrouped result;
  result.groups.resize(plan.groups.size());
  result.origin.resize(plan.groups.size());
  // Both plans list the same parameters in the same order.
  std::unordered_map<std::size_t, std::size_t> home;  // of each parameter, before
  for (std::size_t g = 0; g < before.size(); ++g)
    for (const std::size_t p : before[g]->plan().parameters) home[p] = g;
  std::vector<std::vector<std::size_t>> heirs(before.size());
  for (std::size_t g = 0; g < plan.groups.size(); ++g)
    heirs[home.at(plan.groups[g].parameters.front())].push_back(g);

  for (std::size_t b = 0; b < before.size(); ++b) {
    FlatGroup& old = *before[b];
    for (const std::size_t g : heirs[b]) result.origin[g] = &old;
    if (heirs[b].size() == 1 && stays(old.plan(), plan.groups[heirs[b].front()])) {
      const std::size_t g = heirs[b].front();
      old.rebind(g, plan.groups[g], plan);
      result.groups[g] = std::move(before[b]);
      continue;
    }
    const at::Tensor whole = old.gather_values();
    old.forget_values();
    for (const std::size_t g : heirs[b]) {
      auto group = std::make_unique<FlatGroup>(g, plan.groups[g], plan, context);
      group->values().copy_(cut_slice(whole, old, *group));
      if (reread && !old.plan().trainable && group->plan().trainable) read_group(*group, *reread);
      group->values_changed();
      group->adopt_parameters();
      result.groups[g] = std::move(group);
    }
    result.divided.push_back(std::move(before[b]));
  }
  return result;
}

Relayout Regrouped::relayout(const std::vector<FlatGroup*>& trainable_before,
                             const std::vector<FlatGroup*>& trainable_after) const {
  std::vector<Relayout::Part> parts;
  for (FlatGroup* group : trainable_after) {
    FlatGroup* from = origin[group->id()];
    Relayout::Part part;
    const auto place = std::find(trainable_before.begin(), trainable_before.end(), from);
    if (place != trainable_before.end())
      part.from = static_cast<std::size_t>(place - trainable_before.begin());
    part.before = from == group ? nullptr : from;
    part.after = group;
    parts.push_back(part);
  }
  return Relayout(std::move(parts));
}

}  // namespace floe::shard
