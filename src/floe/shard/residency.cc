#include "floe/shard/residency.h"

#include <algorithm>
#include <map>

#include "floe/core/bytes.h"
#include "floe/core/error.h"

namespace floe::shard {

void make_resident(PlannedGroup& group) {
  group.resident = true;
  group.offloaded = false;
  group.shard_size = 1;
}

void choose_residents(ShardPlan& plan, const FrozenOptions& options) {
  if (options.residency != Residency::automatic) return;
  std::int64_t used = 0;
  std::vector<PlannedGroup*> candidates;
  for (PlannedGroup& group : plan.groups) {
    if (group.trainable) continue;
    if (!group.offloaded) used += group.shard_bytes();  // offloaded slices are in host memory
    if (group.shard_size > 1) candidates.push_back(&group);
  }
  require<ConfigError>(options.memory_budget_bytes >= used, "strategy.frozen.memory_budget of ",
                       format_bytes(options.memory_budget_bytes), " is below the ",
                       format_bytes(used),
                       " that the frozen slices alone take on a rank; raise it or use more ranks");
  // Bytes that no longer move, per byte of memory: with W ranks a resident copy takes (W-1)/W of the
  // group more, so the number of gathers decides; then size, for fewer collectives.
  std::map<const PlannedGroup*, int> gathers;
  for (const PlannedGroup* group : candidates) gathers[group] = plan.gathers_per_step(*group);
  std::stable_sort(candidates.begin(), candidates.end(), [&](const auto* a, const auto* b) {
    if (gathers[a] != gathers[b]) return gathers[a] > gathers[b];
    return a->gathered_bytes() > b->gathered_bytes();
  });
  for (PlannedGroup* group : candidates) {
    PlannedGroup whole = *group;
    make_resident(whole);
    whole.replicas = plan.world_size;
    lay_out(whole, plan.parameters);
    const std::int64_t more = whole.shard_bytes() - (group->offloaded ? 0 : group->shard_bytes());
    if (used + more > options.memory_budget_bytes) continue;
    used += more;
    *group = std::move(whole);
  }
}

}  // namespace floe::shard
