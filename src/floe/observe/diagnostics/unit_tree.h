// The units that a model was cut into: in a few lines, and whole as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "floe/shard/plan/plan.h"

namespace floe::diag {

// How many units of which class, which modules are checkpointed, and the `top_k` largest units.
std::vector<std::string> tree_lines(const shard::ShardPlan& plan, std::size_t top_k);

// What is unusual about the plan, a sentence each: no units, a unit that holds most of the model, tied
// parameters, ranks that hold much less than others, nothing that trains.
std::vector<std::string> plan_notes(const shard::ShardPlan& plan);

// [{"name", "class", "checkpointed", "groups": [{"name", "trainable", "resident", "numel",
// "shard_bytes", "dtype"}]}], as in RUN/diagnostics.json. A tied group is listed by its first unit.
nlohmann::ordered_json units_json(const shard::ShardPlan& plan);

}  // namespace floe::diag
