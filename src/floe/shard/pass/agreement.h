// Checks that all ranks do the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "floe/comm/world.h"
#include "floe/shard/pass/collective_hash.h"
#include "floe/shard/plan/plan.h"

namespace floe::shard {

// What ranks must have in common: the plan, and the options that change values or the order of
// collectives.
std::vector<std::string> agreed_lines(const ShardPlan& plan, const ShardOptions& options);

// Collective: throws ConfigError on every rank when their lines differ, with the first difference.
void compare_plans(const std::vector<std::string>& lines, comm::World& world);

// A slice that some other rank may hold a copy of.
struct HeldCopy {
  std::string name;
  int slice = 0;  // which of the group's slices
  at::Tensor values;
};

// Collective, with the same names on all ranks: throws ShardError on every rank when copies of a
// slice differ by a single bit. It names the first such slice and the ranks, and where more than
// two have it, those that are in the minority.
void compare_copies(const std::vector<HeldCopy>& copies, comm::World& world);

// Numbers that the device has, or will have (double, one-dimensional, any of them undefined).
struct OnDevice {
  at::Tensor summed;  // over ranks, as `values`
  at::Tensor own;     // of this rank
};

// Collective: the sums over ranks of `values` and, behind them, of what the device has to sum;
// last come this rank's own numbers. Waits for the device once. Checks that all ranks have
// issued the same collectives (see Note [Agreement on order]); throws ShardError on every rank
// when they have not.
std::vector<double> sum_and_compare(const std::vector<double>& values, const CollectiveHash& issued,
                                    comm::World& world, const OnDevice& more = {});

}  // namespace floe::shard
