// Which frozen groups stay whole on every rank.
#pragma once

#include "floe/shard/plan.h"

namespace floe::shard {

// The group is no longer sliced.
void make_resident(PlannedGroup& group);

// Residency::automatic: makes frozen groups resident while all frozen parameters together fit into
// the budget. A resident byte saves the gathers of its group, so groups that backward gathers again
// come first, then larger ones (fewer collectives), then registration order.
void choose_residents(ShardPlan& plan, const FrozenOptions& options);

}  // namespace floe::shard
