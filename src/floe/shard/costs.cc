// What a plan holds and moves: the closed formulas of docs/engine.md.
#include <algorithm>

#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/shard/plan.h"

namespace floe::shard {
namespace {

std::int64_t element_size(c10::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

std::int64_t gathered_bytes_of(const ShardPlan& plan, const PlannedUnit& unit) {
  std::int64_t bytes = 0;
  for (const std::size_t g : unit.groups) bytes += plan.groups[g].gathered_bytes();
  return bytes;
}

}  // namespace

std::int64_t PlannedGroup::gathered_bytes() const {
  return in_place() ? 0 : layout.padded_numel() * element_size(param_dtype);
}

std::int64_t PlannedGroup::shard_bytes() const {
  return layout.shard_numel() * element_size(storage_dtype);
}

std::int64_t PlannedGroup::gradient_bytes() const {
  return trainable ? layout.padded_numel() * element_size(reduce_dtype) : 0;
}

std::int64_t ShardPlan::pool_bytes() const {
  // The root is whole while everything else is; of the others two at a time. With shard_grad_op all
  // that waits for its backward is whole too.
  std::int64_t always = 0, kept = 0, largest = 0, second = 0, tied = 0;
  for (const PlannedUnit& unit : units) {
    const std::int64_t bytes = gathered_bytes_of(*this, unit);
    if (unit.name.empty()) {
      always = bytes;
      continue;
    }
    if (bytes > largest) {
      second = largest;
      largest = bytes;
    } else {
      second = std::max(second, bytes);
    }
  }
  for (const PlannedGroup& group : groups) {
    if (group.keep_until_backward()) kept += group.gathered_bytes();
    if (group.units.size() > 1) tied += group.gathered_bytes();
  }
  return std::max(always + largest + second + tied, kept);
}

HeldBytes ShardPlan::held() const {
  HeldBytes held;
  // The root's parameters lie at both ends of the model, so its buffer stays open through backward;
  // of the others one fills while one is being reduced.
  std::int64_t largest = 0, second = 0, root = 0;
  for (const PlannedGroup& group : groups) {
    (group.trainable ? held.trainable_shards : held.frozen_shards) += group.shard_bytes();
    if (!group.trainable) continue;
    held.gradient_shards += group.layout.shard_numel() * element_size(group.storage_dtype);
    held.optimizer_state += 2 * group.layout.shard_numel() * element_size(group.storage_dtype);
    if (group.shard_size == 1 && group.reduce_dtype == group.storage_dtype) continue;
    if (units[group.units.front()].name.empty() || group.units.size() > 1) {
      root += group.gradient_bytes();
    } else if (group.gradient_bytes() > largest) {
      second = largest;
      largest = group.gradient_bytes();
    } else {
      second = std::max(second, group.gradient_bytes());
    }
  }
  held.gradient_buffers = root + largest + second;
  held.pool = pool_bytes();
  return held;
}

MovedBytes ShardPlan::moved() const {
  MovedBytes moved;
  // The unit whose forward ends last stays gathered: units are in forward order, the root spans all.
  std::size_t last = units.size();
  for (std::size_t u = 0; u + 1 < units.size(); ++u)
    if (gathered_bytes_of(*this, units[u]) > 0) last = u;
  for (const PlannedGroup& group : groups) {
    const std::int64_t bytes = group.gathered_bytes();
    if (group.shard_size > 1 && bytes > 0) {
      const bool in_root = units[group.units.front()].name.empty();
      const bool stays = in_root || group.keep_until_backward() ||
                         std::find(group.units.begin(), group.units.end(), last) != group.units.end();
      const int times = 1 + (group.needed_in_backward && !stays ? 1 : 0);
      moved.gathers += times;
      moved.gathered += times * bytes;
    }
    if (!group.trainable) continue;
    if (group.shard_size > 1) {
      moved.reduce_scatters += 1;
      moved.reduce_scattered += group.gradient_bytes();
    }
    if (group.replicas > 1) {
      moved.all_reduces += 1;
      moved.all_reduced += group.layout.shard_numel() * element_size(group.reduce_dtype);
    }
  }
  return moved;
}

std::vector<std::string> ShardPlan::lines() const {
  std::vector<std::string> result{str("world of ", world_size, " ranks")};
  for (const PlannedUnit& unit : units) {
    result.push_back(str("unit '", unit.label(), "' of class ", unit.class_name, " with ",
                         unit.groups.size(), " groups"));
    for (const std::size_t g : unit.groups) {
      const PlannedGroup& group = groups[g];
      if (&units[group.units.front()] != &unit) continue;
      result.push_back(str("group '", group.name, "': ", name_of(group.strategy),
                           group.resident ? " resident" : "", ", ", group.layout.numel(),
                           " elements over ", group.shard_size, " ranks, stored ",
                           c10::toString(group.storage_dtype), ", gathered ",
                           c10::toString(group.param_dtype), ", reduced ",
                           c10::toString(group.reduce_dtype)));
      for (const std::size_t p : group.parameters)
        result.push_back(str("parameter '", parameters[p].name, "' of shape [",
                             join(parameters[p].shape), "]",
                             parameters[p].trainable ? ", trainable" : ", frozen"));
    }
  }
  return result;
}

}  // namespace floe::shard
