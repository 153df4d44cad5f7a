// Checks that all ranks do the same.
#pragma once

#include <string>
#include <vector>

#include "floe/comm/world.h"
#include "floe/shard/ledger.h"
#include "floe/shard/plan.h"

namespace floe::shard {

// What ranks must have in common: the plan, and the options that change values or the order of
// collectives.
std::vector<std::string> agreed_lines(const ShardPlan& plan, const ShardOptions& options);

// Collective: throws ConfigError on every rank when their lines differ, with the first difference.
void compare_plans(const std::vector<std::string>& lines, comm::World& world);

// Collective: the sums over ranks of `values`, after checking that all ranks have issued the same
// collectives (see Note [Agreement on order]); throws ShardError on every rank when they have not.
std::vector<double> sum_with_ledger(const std::vector<double>& values, const Ledger& ledger,
                                    comm::World& world);

}  // namespace floe::shard
