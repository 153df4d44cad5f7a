#include "floe/observe/diagnostics/strategy_lines.h"

#include <algorithm>
#include <utility>

#include "floe/core/bytes.h"
#include "floe/shard/plan/plan.h"

namespace floe::diagnostics {
namespace {

std::string sharding_words(const StrategyConfig& strategy, int world) {
  const shard::StrategyEntry& entry = shard::entry_of(strategy.sharding);
  const char* kept =
      entry.keep_until_backward ? ", whole from a unit's forward to its backward" : "";
  switch (entry.sliced_over) {
    case shard::SlicedOver::all_ranks:
      return str(entry.name, ": slices over all ", world, " ranks",
                 entry.keep_until_backward ? kept : ", whole while a unit computes");
    case shard::SlicedOver::one_rank:
      return str(entry.name, ": each of the ", world,
                 " ranks holds everything, gradients are averaged");
    case shard::SlicedOver::neighbours:
      return str(entry.name, ": slices over ", strategy.hybrid_shard_size, " neighbours, ",
                 world / strategy.hybrid_shard_size, " copies", kept);
  }
  return "?";
}

std::string residency_words(const FrozenConfig& frozen) {
  using enum shard::Residency;
  switch (frozen.residency) {
    case sharded: return "sharded: sliced like the rest and gathered when needed";
    case resident: return "resident: a whole copy on every rank, never gathered";
    case automatic:
      return str("auto: resident as far as ",
                 frozen.memory_budget ? format_bytes(frozen.memory_budget->bytes) : "the budget",
                 " per rank goes, sliced beyond");
  }
  return "?";
}

std::string matched(const std::string& entry, std::size_t count) {
  if (count == 0) return str("'", entry, "' no module of this model");
  return str("'", entry, "' ", count, count == 1 ? " module" : " modules");
}

// `Places`: have a name and a module.
template <class Places>
std::string matches_of(const std::vector<std::string>& entries, const Places& places) {
  std::vector<std::string> parts;
  for (const std::string& entry : entries)
    parts.push_back(matched(entry, static_cast<std::size_t>(std::count_if(
                                       places.begin(), places.end(), [&](const auto& place) {
                                         return !place.name.empty() &&
                                                shard::names_module(entry, place.name,
                                                                    *place.module);
                                       }))));
  return join(parts);
}

// What settings come to, each with the place its value comes from.
class Lines {
 public:
  explicit Lines(const StrategySettings& settings) : settings_(settings) {}
  void add(const std::string& words, const std::string& key) {
    const config::Value* value = settings_.values.at(key);
    lines_.push_back(str(words, " (", key, ", ", value ? value->origin.text() : "default", ")"));
  }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  const StrategySettings& settings_;
  std::vector<std::string> lines_;
};

void add_sharding(const StrategyConfig& strategy, int world, Lines& lines) {
  lines.add(str("sharding is ", sharding_words(strategy, world)), "strategy.sharding");
  if (shard::entry_of(strategy.sharding).sliced_over == shard::SlicedOver::neighbours)
    lines.add(str("a copy is sliced over ", strategy.hybrid_shard_size, " ranks"),
              "strategy.hybrid_shard_size");
  lines.add(str("units are ", strategy.units.empty() ? "not named" : join(strategy.units)),
            "strategy.units");
}

void add_activations(const StrategyConfig& strategy, Lines& lines) {
  const std::vector<std::string>& checkpointed = strategy.activation_checkpointing;
  lines.add(str("activation checkpointing is ", checkpointed.empty()
                                                    ? "off: all activations are kept"
                                                    : str("on for ", join(checkpointed))),
            "strategy.activation_checkpointing");
  if (checkpointed.empty()) return;
  const ActivationsConfig& activations = strategy.activations;
  lines.add(activations.keep == ActivationsConfig::Keep::products
                ? "checkpointed modules keep their inputs and the results of "
                  "matrix products and attention, and recompute the rest"
                : "checkpointed modules keep their inputs and recompute the rest",
            "strategy.activations.keep");
  lines.add(activations.offload ? "what they keep waits for backward in host memory"
                                : "what they keep waits for backward on the device",
            "strategy.activations.offload");
  if (activations.share != 1)
    lines.add(str("of the modules that each entry names the first ", 100 * activations.share,
                  "%, rounded up, are checkpointed, and the others keep everything"),
              "strategy.activations.share");
}

void add_frozen(const StrategyConfig& strategy, Lines& lines) {
  lines.add(str("frozen parameters are ", residency_words(strategy.frozen)),
            "strategy.frozen.residency");
  if (strategy.frozen.sharding == shard::FrozenSharding::node)
    lines.add(str("frozen parameters are sliced over the ", strategy.hybrid_shard_size,
                  " ranks of a node, what trains over all"),
              "strategy.frozen.sharding");
}

void add_gradients_and_slices(const StrategyConfig& strategy, Lines& lines) {
  if (strategy.accumulate)
    lines.add(*strategy.accumulate == shard::Accumulate::local
                  ? "gradients of several passes add up whole on each rank"
                  : "gradients of several passes add up in slices",
              "strategy.accumulate");
  lines.add(strategy.cpu_offload ? "slices, their gradients and optimizer state lie in host memory"
                                 : "slices lie on the device, nothing of them is offloaded",
            "strategy.cpu_offload");
  lines.add(strategy.prefetch == 0
                ? "units are gathered when they are needed, not ahead"
                : str(strategy.prefetch, strategy.prefetch == 1 ? " unit is" : " units are",
                      " gathered ahead of the one that computes"),
            "strategy.prefetch");
}

void add_precision(const StrategySettings& settings, Lines& lines) {
  const MixedPrecisionConfig& mixed = settings.strategy.mixed_precision;
  const std::optional<DType>& compute = settings.strategy.frozen.compute;
  const std::optional<DType> frozen = settings.strategy.frozen.matrix_dtype();
  const std::optional<DType>& autocast = settings.precision.autocast;
  lines.add(str("parameters are gathered and computed with in ", name_of(mixed.param)),
            "strategy.mixed_precision.param");
  lines.add(str("gradients are reduced in ", name_of(mixed.reduce)),
            "strategy.mixed_precision.reduce");
  lines.add(str("buffers are ", name_of(mixed.buffer)), "strategy.mixed_precision.buffer");
  const bool eight_bit = frozen == DType::i8 || frozen == DType::f8_e4m3;
  lines.add(eight_bit
                ? str("what trains is stored in fp32, frozen matrices are stored and gathered in ",
                      name_of(*frozen), ", what else is frozen in ", name_of(mixed.param))
                : str("what trains is stored in fp32, what is frozen in ",
                      name_of(frozen.value_or(mixed.param)), frozen ? "" : ", as it is gathered"),
            compute ? "strategy.frozen.compute" : "strategy.frozen.dtype");
  if (compute)
    lines.add(str("frozen linear layers multiply in ", name_of(*compute), ", forward and backward"),
              "strategy.frozen.compute");
  lines.add(autocast ? str("forwards run under autocast in ", name_of(*autocast),
                           "; it changes nothing of the above: strategy.mixed_precision wins")
                     : "forwards run without autocast",
            "precision.autocast");
  if (settings.loss_scale)
    lines.add(str("the loss is scaled, at first by ", *settings.loss_scale),
              "precision.loss_scale");
}

}  // namespace

std::vector<std::string> precision_lines(const StrategySettings& settings) {
  Lines lines(settings);
  add_precision(settings, lines);
  return lines.take();
}

std::vector<std::string> strategy_lines(const StrategySettings& settings) {
  const StrategyConfig& strategy = settings.strategy;
  Lines lines(settings);
  add_sharding(strategy, settings.world_size, lines);
  add_activations(strategy, lines);
  add_frozen(strategy, lines);
  add_gradients_and_slices(strategy, lines);
  add_precision(settings, lines);
  lines.add(str("checkpoints are ", settings.state_dict_type), "checkpoint.state_dict_type");
  return lines.take();
}

std::vector<std::string> match_lines(const StrategyConfig& strategy, const shard::ShardPlan& plan) {
  std::vector<std::string> lines;
  if (!strategy.units.empty())
    lines.push_back(str("strategy.units matched: ", matches_of(strategy.units, plan.units)));
  if (!strategy.activation_checkpointing.empty())
    lines.push_back(str("strategy.activation_checkpointing ",
                        strategy.activations.share == 1 ? "matched: " : "checkpoints: ",
                        matches_of(strategy.activation_checkpointing, plan.checkpointed)));
  return lines;
}

}  // namespace floe::diagnostics
