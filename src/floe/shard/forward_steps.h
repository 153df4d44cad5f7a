// The way through a model that a rank without work of its own takes beside the others.
#pragma once

#include <vector>

#include "floe/shard/plan.h"
#include "floe/shard/schedule.h"

namespace floe::shard {

// The steps of a forward without gradients: of the last one, else of the last training pass's
// forward, else the units in registration order.
std::vector<Step> forward_steps(const Schedule& schedule, const ShardPlan& plan);

}  // namespace floe::shard
