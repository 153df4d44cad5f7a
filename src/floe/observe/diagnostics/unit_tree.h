// The units that a model was cut into: in a few lines, and whole as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "floe/shard/plan/plan.h"

namespace floe::diagnostics {

// How many units of which class, which modules are checkpointed, and the `top_k` largest units.
std::vector<std::string> tree_lines(const shard::ShardPlan& plan, std::size_t top_k);

// What is unusual about the plan, a sentence each: no units, a unit that holds most of the model,
// tied parameters, ranks that hold much less than others, nothing that trains.
std::vector<std::string> plan_notes(const shard::ShardPlan& plan);

// [{"name", "class", "checkpointed", "groups": [{"name", "trainable", "resident", "numel",
// "shard_bytes", "dtype"}]}], as in RUN/diagnostics.json. A tied group is listed by its first unit.
nlohmann::ordered_json units_json(const shard::ShardPlan& plan);

// What a rank's slices of the parameters amount to, by the plan: every rank knows it of all.
struct RankBytes {
  int rank = 0;
  std::int64_t trainable_bytes = 0, frozen_bytes = 0;  // held, with the zeros that pad slices
  std::int64_t padding_bytes = 0;                      // of them: such zeros
  std::int64_t held_bytes() const { return trainable_bytes + frozen_bytes; }
  std::int64_t used_bytes() const { return held_bytes() - padding_bytes; }
};

// By rank.
std::vector<RankBytes> rank_bytes(const shard::ShardPlan& plan);

}  // namespace floe::diagnostics
