// What a plan holds and moves: the closed formulas of docs/engine.md.
#include "floe/shard/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/str.h"

namespace floe::shard {
namespace {

std::int64_t element_size(c10::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

bool is_inside(const PlannedUnit& inner, const PlannedUnit& outer) {
  return &inner != &outer && (outer.name.empty() || inner.name.starts_with(outer.name + "."));
}

// The most that is in use at once when `bytes[u]` is in use while unit u runs, its outer units run
// around it, and the `ahead` units after it are on their way.
std::int64_t largest_window(const std::vector<PlannedUnit>& units,
                            const std::vector<std::int64_t>& bytes, int ahead) {
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    std::int64_t sum = bytes[u];
    for (std::size_t next = u + 1;
         next < units.size() && next <= u + static_cast<std::size_t>(ahead); ++next)
      if (!is_inside(units[u], units[next])) sum += bytes[next];
    for (std::size_t outer = 0; outer < units.size(); ++outer)
      if (is_inside(units[u], units[outer])) sum += bytes[outer];
    largest = std::max(largest, sum);
  }
  return largest;
}

// How many elements a slice is a multiple of: see Note [Aligned slices].
std::int64_t slice_granule(const PlannedGroup& group) {
  if (group.eight_bit_at_rest()) return kSliceAlignment;  // one byte each
  if (group.shard_size == 1) return 1;
  std::int64_t smallest =
      std::min(element_size(group.storage_dtype), element_size(group.param_dtype));
  if (group.trainable) smallest = std::min(smallest, element_size(group.reduce_dtype));
  return ceil_div(kSliceAlignment, smallest);
}

}  // namespace

CodesLayout PlannedGroup::codes_layout() const {
  CodesLayout codes;
  codes.scales = layout.padded_numel();
  codes.transposed = codes.scales + round_up(eight_bit_slices.num_rows * element_size(at::kFloat),
                                             kSliceAlignment);
  codes.bytes = codes.transposed + (transposed ? layout.numel() : 0);
  return codes;
}

std::int64_t PlannedGroup::gathered_bytes() const {
  if (multiplied) return in_place() ? 0 : codes_layout().bytes;
  return in_place() ? 0 : layout.padded_numel() * element_size(param_dtype);
}

std::int64_t PlannedGroup::moved_bytes() const {
  return eight_bit() ? shard_size * eight_bit_slices.slice_bytes() : gathered_bytes();
}

std::int64_t PlannedGroup::staging_bytes() const {
  return eight_bit() && (shard_size > 1 || offloaded) ? moved_bytes() : 0;
}

std::int64_t PlannedGroup::slice_bytes() const {
  if (eight_bit())
    return eight_bit_slices.slice_bytes() + (transposed && in_place() ? layout.numel() : 0);
  return layout.slice_numel() * element_size(storage_dtype);
}

std::int64_t PlannedGroup::gradient_bytes() const {
  return active ? layout.padded_numel() * element_size(reduce_dtype) : 0;
}

std::int64_t ShardPlan::pool_bytes() const {
  std::vector<std::int64_t> passing(units.size(), 0);
  std::int64_t kept =
      0;  // through the whole forward: for backward, or for another unit that is tied
  for (const PlannedGroup& group : groups) {
    if (group.units.size() > 1 || (group.keep_until_backward() && group.needed_in_backward))
      kept += group.gathered_bytes();
    else
      passing[group.units.front()] += group.gathered_bytes();
    passing[group.units.front()] += group.staging_bytes();
  }
  return kept + largest_window(units, passing, prefetch);
}

Accumulate ShardPlan::accumulates() const {
  if (accumulate) return *accumulate;
  for (const PlannedGroup& group : groups)
    if (group.active && (group.reduce_dtype != group.master_dtype || group.offloaded))
      return Accumulate::reduced;
  constexpr std::int64_t kShare = 10;
  const std::int64_t least = held(/*whole_gradients=*/false).peak();
  return held(/*whole_gradients=*/true).peak() - least <= least / kShare ? Accumulate::local
                                                                         : Accumulate::reduced;
}

HeldBytes ShardPlan::held() const {
  return held(passes_per_update > 1 && accumulates() == Accumulate::local);
}

HeldBytes ShardPlan::held(bool whole_gradients) const {
  HeldBytes held;
  std::vector<std::int64_t> passing(units.size(), 0);
  std::int64_t waiting = 0;  // beyond a unit's backward: for a tied unit, or for the next pass
  for (const PlannedGroup& group : groups) {
    (group.active      ? held.trainable_slices
     : group.trainable ? held.resting_slices
                       : held.frozen_slices) += group.slice_bytes();
    const std::int64_t masters = group.layout.slice_numel() * element_size(group.master_dtype);
    for (std::size_t set = 0; set < sets.size(); ++set)
      if (set != active_set && group.trains_in(set) && sets[set].rest == Rest::keep)
        held.resting_state += 2 * masters;
    if (!group.active) continue;
    held.gradient_slices += masters;
    held.optimizer_state += 2 * masters;
    const bool in_place =
        group.shard_size == 1 && group.reduce_dtype == group.storage_dtype && !group.offloaded;
    if (in_place) continue;
    const bool waits = group.units.size() > 1 || (whole_gradients && group.shard_size > 1);
    (waits ? waiting : passing[group.units.front()]) += group.gradient_bytes();
  }
  // One buffer fills while the one before is being reduced; those of outer units stay open
  // meanwhile, because their parameters lie on both sides.
  held.gradient_buffers = waiting + largest_window(units, passing, 1);
  held.pool = pool_bytes();
  return held;
}

int ShardPlan::gathers_per_step(const PlannedGroup& group) const {
  if (group.shard_size == 1 || group.gathered_bytes() == 0) return 0;
  if (!group.needed_in_backward || group.keep_until_backward()) return 1;
  // The unit whose forward ends last is whole when backward begins, and so are those around it.
  std::size_t last = units.size() - 1;
  for (std::size_t u = 0; u + 1 < units.size(); ++u)
    for (const std::size_t g : units[u].groups)
      if (groups[g].gathered_bytes() > 0) last = u;
  const bool stays = std::any_of(group.units.begin(), group.units.end(), [&](std::size_t u) {
    return u == last || is_inside(units[last], units[u]);
  });
  return stays ? 1 : 2;
}

MovedBytes ShardPlan::moved() const {
  MovedBytes moved;
  const int scatters = accumulates() == Accumulate::local ? 1 : passes_per_update;
  for (const PlannedGroup& group : groups) {
    const int times = passes_per_update * gathers_per_step(group);
    moved.gathers += times;
    moved.gathered += times * group.moved_bytes();
    if (!group.active) continue;
    if (group.shard_size > 1) {
      moved.reduce_scatters += scatters;
      moved.reduce_scattered += scatters * group.gradient_bytes();
    }
    if (group.replicas > 1) {
      moved.all_reduces += 1;
      moved.all_reduced += group.layout.slice_numel() * element_size(group.reduce_dtype);
    }
  }
  return moved;
}

std::string ShardPlan::names_of(SetMask chosen, const char* between) const {
  std::vector<std::string> names;
  for (std::size_t set = 0; set < sets.size(); ++set)
    if (chosen.has(set)) names.push_back(sets[set].name);
  return join(names, between);
}

std::vector<std::string> ShardPlan::lines() const {
  std::vector<std::string> result{str("world of ", world_size, " ranks")};
  for (const ParameterSet& set : sets)
    if (sets.size() > 1)
      result.push_back(str("set '", set.name, "', which while it rests does: ", name_of(set.rest)));
  for (const PlannedUnit& unit : units) {
    result.push_back(str("unit '", unit.label(), "' of class ", unit.class_name, " with ",
                         unit.groups.size(), " groups"));
    for (const std::size_t g : unit.groups) {
      const PlannedGroup& group = groups[g];
      if (&units[group.units.front()] != &unit) continue;
      result.push_back(str(
          "group '", group.name, "': ", name_of(group.strategy), group.resident ? " resident" : "",
          ", ", group.layout.numel(), " elements over ", group.shard_size, " ranks, stored ",
          c10::toString(group.storage_dtype), ", gathered ",
          group.multiplied ? "as codes for products" : c10::toString(group.param_dtype),
          group.transposed ? " both ways" : "", ", reduced ", c10::toString(group.reduce_dtype)));
      for (const std::size_t p : group.parameters)
        result.push_back(str("parameter '", parameters[p].name, "' of shape [",
                             join(parameters[p].shape), "]",
                             parameters[p].trainable ? ", trainable" : ", frozen",
                             sets.size() > 1 ? str(", in sets ", parameters[p].sets.bits()) : ""));
    }
  }
  return result;
}

void lay_out(PlannedGroup& group, const std::vector<PlannedParameter>& parameters) {
  const bool eight_bit = group.eight_bit_at_rest();
  static_assert(kernels::EightBitSlices::kAlignment == kSliceAlignment);
  std::vector<std::int64_t> numels;
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes;
  for (const std::size_t i : group.parameters) {
    const PlannedParameter& parameter = parameters[i];
    numels.push_back(parameter.numel);
    if (eight_bit) shapes.emplace_back(parameter.shape[0], parameter.shape[1]);
  }
  group.layout = FlatLayout(std::move(numels), group.shard_size, slice_granule(group));
  if (eight_bit)
    group.eight_bit_slices =
        kernels::EightBitSlices(shapes, group.layout.slice_numel(), group.shard_size);
}

std::int64_t share_of(double share, std::int64_t modules) {
  // A share such as 0.7 of 10 is 7, however it is rounded.
  constexpr double kRounding = 1e-6;
  return std::max<std::int64_t>(
      1, std::llround(std::ceil(share * static_cast<double>(modules) - kRounding)));
}

void ShardPlan::activate(std::size_t set) {
  active_set = set;
  const auto lowest = std::find_if(parameters.begin(), parameters.end(),
                                   [&](const PlannedParameter& p) { return p.trains_in(set); });
  const auto first = static_cast<std::size_t>(lowest - parameters.begin());
  for (PlannedGroup& group : groups) {
    group.active = group.trains_in(set);
    if (group.trainable) {
      const bool away = !group.active && group.leaves_device();
      group.storage_dtype = away ? group.rest_dtype : group.master_dtype;
      group.multiplied = group.multiplies && group.eight_bit();
    }
    // What lies above the lowest parameter that trains; a tied one is used again further up than
    // its first place.
    group.needed_in_backward =
        std::any_of(group.parameters.begin(), group.parameters.end(), [&](std::size_t i) {
          const bool above = lowest != parameters.end() && (i > first || parameters[i].used_twice);
          return above && parameters[i].read_in_backward;
        });
  }
  // A forward that runs again reads all of the unit's parameters, if its backward exists.
  for (const PlannedUnit& unit : units) {
    const bool has_backward =
        unit.recomputes && std::any_of(unit.groups.begin(), unit.groups.end(), [&](std::size_t g) {
          const auto& indices = groups[g].parameters;
          return std::any_of(indices.begin(), indices.end(),
                             [&](std::size_t i) { return i >= first; });
        });
    if (has_backward)
      for (const std::size_t g : unit.groups) groups[g].needed_in_backward = true;
  }
}

// ---- residents ----

void make_resident(PlannedGroup& group) {
  group.resident = true;
  group.offloaded = false;
  group.shard_size = 1;
}

void choose_residents(ShardPlan& plan, const FrozenOptions& options) {
  if (options.residency != Residency::automatic) return;
  std::int64_t used = 0;
  std::vector<PlannedGroup*> candidates;
  for (PlannedGroup& group : plan.groups) {
    if (group.trainable) continue;
    if (!group.offloaded) used += group.slice_bytes();  // offloaded slices are in host memory
    if (group.shard_size > 1) candidates.push_back(&group);
  }
  require<ConfigError>(
      options.memory_budget_bytes >= used, "FrozenOptions::memory_budget_bytes of ",
      format_bytes(options.memory_budget_bytes), " is below the ", format_bytes(used),
      " that the frozen slices alone take on a rank; raise it or use more ranks");
  // Bytes that no longer move, per byte of memory: with W ranks a resident copy takes (W-1)/W of
  // the group more, so the number of gathers decides; then size, for fewer collectives.
  std::map<const PlannedGroup*, int> gathers;
  for (const PlannedGroup* group : candidates) gathers[group] = plan.gathers_per_step(*group);
  std::stable_sort(candidates.begin(), candidates.end(), [&](const auto* a, const auto* b) {
    if (gathers[a] != gathers[b]) return gathers[a] > gathers[b];
    return a->gathered_bytes() > b->gathered_bytes();
  });
  for (PlannedGroup* group : candidates) {
    PlannedGroup whole = *group;
    make_resident(whole);
    whole.replicas = plan.world_size;
    lay_out(whole, plan.parameters);
    const std::int64_t more = whole.slice_bytes() - (group->offloaded ? 0 : group->slice_bytes());
    if (used + more > options.memory_budget_bytes) continue;
    used += more;
    *group = std::move(whole);
  }
}

}  // namespace floe::shard
