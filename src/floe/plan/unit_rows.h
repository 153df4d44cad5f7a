// Units that are alike, as one line of a table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "floe/shard/plan.h"

namespace floe::plan {

// Units of one class whose names differ only in a number and whose groups are equal.
struct UnitRow {
  std::vector<std::size_t> units;  // of the plan, in order
  std::string label;               // "embed", "layers.0 … 31", "layers.0 … 31.mlp"
};

// Of each group, bit s: backward needs it while set s trains.
std::vector<std::uint64_t> backward_sets(const shard::ShardPlan& plan);

// In the order of their first units.
std::vector<UnitRow> unit_rows(const shard::ShardPlan& plan);

}  // namespace floe::plan
