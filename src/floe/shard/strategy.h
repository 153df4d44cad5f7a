// The sharding strategies: one entry each. Names, help, plan, engine and diagnostics follow from
// it; see docs/adding-a-sharding-strategy.md.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace floe::shard {

enum class Strategy { full_shard, shard_grad_op, no_shard, hybrid, hybrid_grad_op };

// Over which ranks a group is sliced; the other ranks hold copies of the slices.
enum class SlicedOver {
  all_ranks,   // no copies
  neighbours,  // ShardOptions::hybrid_shard_size of them, inside a machine as a rule
  one_rank,    // everybody holds everything
};

struct StrategyEntry {
  Strategy strategy;
  std::string_view name;  // in configurations, plans and errors
  std::string_view help;  // as it stands in brackets behind the name
  SlicedOver sliced_over = SlicedOver::all_ranks;
  // Gathered parameters that backward needs stay from a unit's forward to its backward: one gather
  // per step instead of two, for the memory of all of them at once.
  bool keep_until_backward = false;
};

// In the order of the enum.
inline constexpr std::array kStrategies{
    StrategyEntry{Strategy::full_shard, "full_shard", "ZeRO-3"},
    StrategyEntry{.strategy = Strategy::shard_grad_op,
                  .name = "shard_grad_op",
                  .help = "ZeRO-2: kept from forward to backward",
                  .keep_until_backward = true},
    StrategyEntry{Strategy::no_shard, "no_shard", "DDP", SlicedOver::one_rank},
    StrategyEntry{Strategy::hybrid, "hybrid", "shard inside a group of ranks, replicate across",
                  SlicedOver::neighbours},
    StrategyEntry{.strategy = Strategy::hybrid_grad_op,
                  .name = "hybrid_grad_op",
                  .help = "hybrid, kept from forward to backward",
                  .sliced_over = SlicedOver::neighbours,
                  .keep_until_backward = true},
};

constexpr const StrategyEntry& entry_of(Strategy strategy) {
  return kStrategies[static_cast<std::size_t>(strategy)];
}
constexpr std::string_view name_of(Strategy strategy) { return entry_of(strategy).name; }

// For configurations.
constexpr auto enum_names(Strategy) {
  std::array<std::pair<std::string_view, Strategy>, kStrategies.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i)
    names[i] = {kStrategies[i].name, kStrategies[i].strategy};
  return names;
}

static_assert([] {
  for (std::size_t i = 0; i < kStrategies.size(); ++i)
    if (kStrategies[i].strategy != static_cast<Strategy>(i)) return false;
  return true;
}());

// Where the gradients of several passes add up before an update.
//
// Note [Accumulation]
// An update may take several passes (micro-batches, or sources one after the other). What is summed
// over copies of a slice (no_shard, hybrid) is summed once, by the last of them. What is sliced can
// add up in two places. No choice changes more than the order of sums.
enum class Accumulate {
  reduced,  // every pass is reduce-scattered, and slices add up: no memory, traffic for each pass
  local,    // whole gradients add up on each rank: one reduce-scatter, memory for all of them
};
constexpr auto enum_names(Accumulate) {
  using enum Accumulate;
  return std::to_array<std::pair<std::string_view, Accumulate>>(
      {{"reduced", reduced}, {"local", local}});
}
constexpr std::string_view name_of(Accumulate accumulate) {
  return enum_names(accumulate)[static_cast<std::size_t>(accumulate)].first;
}

// Where frozen parameters live.
enum class Residency {
  sharded,    // as the strategy says
  resident,   // a whole copy on every rank, never gathered
  automatic,  // resident as far as a budget goes, most traffic saved per byte first
};
constexpr auto enum_names(Residency) {
  using enum Residency;
  return std::to_array<std::pair<std::string_view, Residency>>(
      {{"sharded", sharded}, {"resident", resident}, {"auto", automatic}});
}

// Over which ranks frozen parameters are sliced where the strategy slices over all of them.
//
// Note [Frozen slices inside a node]
// A frozen slice never goes stale, so copies of it need no traffic: a copy per node costs memory
// and takes the gathers of what is frozen off the network between nodes. What some set trains is
// sliced as the strategy says.
enum class FrozenSharding {
  all,   // as the strategy says
  node,  // over ShardOptions::hybrid_shard_size neighbours
};
constexpr auto enum_names(FrozenSharding) {
  using enum FrozenSharding;
  return std::to_array<std::pair<std::string_view, FrozenSharding>>({{"all", all}, {"node", node}});
}

}  // namespace floe::shard
