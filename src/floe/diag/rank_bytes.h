// What each rank's slices of the parameters amount to, by the plan: every rank knows it of all.
#pragma once

#include <cstdint>
#include <vector>

#include "floe/shard/plan.h"

namespace floe::diag {

struct RankBytes {
  int rank = 0;
  std::int64_t trainable_bytes = 0, frozen_bytes = 0;  // held, with the zeros that pad slices
  std::int64_t padding_bytes = 0;                      // of them: such zeros
  std::int64_t held_bytes() const { return trainable_bytes + frozen_bytes; }
  std::int64_t used_bytes() const { return held_bytes() - padding_bytes; }
};

// By rank.
std::vector<RankBytes> rank_bytes(const shard::ShardPlan& plan);

}  // namespace floe::diag
