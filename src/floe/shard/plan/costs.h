// Which frozen groups stay whole on every rank.
#pragma once

#include "floe/shard/plan/plan.h"

namespace floe::shard {

// The group is no longer sliced.
void make_resident(PlannedGroup& group);

// Residency::automatic: makes frozen groups resident while all frozen parameters together fit into
// the budget, those first whose residence saves most traffic per byte.
void choose_residents(ShardPlan& plan, const FrozenOptions& options);

}  // namespace floe::shard
