#include "floe/strategy/strategy_config.h"

#include <set>

#include "floe/schema/schema.h"

namespace floe {
namespace {

constexpr auto kFloatTypes = {"fp32", "bf16", "fp16"};
constexpr auto kStorageTypes = {"fp32", "bf16", "fp16", "int8", "fp8"};

// The end of the sentence "strategy.units ...", or nothing.
std::string repeated(const std::vector<std::string>& names) {
  std::set<std::string> seen;
  for (const std::string& name : names)
    if (!seen.insert(name).second) return str("names '", name, "' twice; keep one");
  return "";
}

// "full_shard (ZeRO-3), ... or hybrid (...)".
std::string strategies_in_words() {
  std::string words;
  for (const shard::StrategyEntry& entry : shard::kStrategies)
    words += str(&entry == &shard::kStrategies.front()  ? ""
                 : &entry == &shard::kStrategies.back() ? " or "
                                                        : ", ",
                 entry.name, " (", entry.help, ")");
  return words;
}

std::vector<std::string_view> strategies_with_copies() {
  std::vector<std::string_view> names;
  for (const shard::StrategyEntry& entry : shard::kStrategies)
    if (entry.sliced_over == shard::SlicedOver::neighbours) names.push_back(entry.name);
  return names;
}

}  // namespace

void describe(config::Schema<MixedPrecisionConfig>& s) {
  using C = MixedPrecisionConfig;
  s.choice("param", &C::param, kFloatTypes, "Type of gathered parameters and of the computation");
  s.choice("reduce", &C::reduce, kFloatTypes, "Type in which gradients are summed over ranks");
  s.choice("buffer", &C::buffer, kFloatTypes, "Type of buffers");
}

void describe(config::Schema<FrozenConfig>& s) {
  using C = FrozenConfig;
  s.field("residency", &C::residency,
          "Where frozen parameters live: sharded over ranks, a resident copy on each, or as many "
          "resident as the budget holds");
  s.field("sharding", &C::sharding,
          "Over which ranks frozen parameters are sliced: all, or the hybrid_shard_size ranks of a "
          "node, so that each node has a copy and nothing frozen is gathered from another; what "
          "trains is sliced as before");
  s.field("memory_budget", &C::memory_budget,
          "Bytes that resident frozen parameters may take on a rank, for auto")
      .more_than(0);
  s.choice(
      "dtype", &C::dtype, kStorageTypes,
      "Storage type of frozen parameters; null is mixed_precision.param. With int8 or fp8 the "
      "frozen weights of linear layers are stored and gathered in 8 bits, with one scale per row, "
      "and the rest as with null");
  s.choice("compute", &C::compute, {"fp8"},
           "With fp8, frozen linear layers multiply in 8 bits, forward and backward: their weights "
           "stay as they are stored (dtype: fp8), and what comes in is brought to 8 bits row by "
           "row; on a GPU from compute capability 8.9 on, emulated on the CPU. null: values are "
           "computed with in mixed_precision.param");
  s.check("compute", [](const C& c) -> std::string {
    if (c.compute && c.dtype && c.dtype != c.compute)
      return str("is ", name_of(*c.compute), ", but dtype is ", name_of(*c.dtype),
                 "; what is multiplied in 8 bits is stored so: remove dtype");
    return "";
  });
  s.check("residency", [](const C& c) {
    if (c.residency == shard::Residency::automatic && !c.memory_budget)
      return "is auto, which needs a budget; set memory_budget beside it, such as 40GiB";
    return "";
  });
  s.check("sharding", [](const C& c) {
    if (c.residency == shard::Residency::resident && c.sharding != shard::FrozenSharding::all)
      return "has no effect here; resident copies are not sliced, so remove one of the two";
    return "";
  });
  s.check("memory_budget", [](const C& c) {
    if (c.residency != shard::Residency::automatic && c.memory_budget)
      return "has no effect here; set residency: auto beside it, or remove the budget";
    return "";
  });
}

void describe(config::Schema<ActivationsConfig>& s) {
  using C = ActivationsConfig;
  s.field("keep", &C::keep,
          "What stays of a checkpointed module for its backward: its inputs, or the products too "
          "(results of matrix products and attention), so that only cheap parts are recomputed");
  s.field("offload", &C::offload, "What stays of checkpointed modules waits in pinned host memory");
  s.field("share", &C::share,
          "Of the modules with a backward that an entry of activation_checkpointing names, this "
          "part is "
          "checkpointed, rounded up: the first ones in the model's order. What the others keep is "
          "gone "
          "again when the backward of these begins, so less is computed twice where memory is left")
      .more_than(0)
      .at_most(1);
}

void describe(config::Schema<AutoStrategyConfig>& s) {
  using C = AutoStrategyConfig;
  s.field("memory", &C::memory,
          "Memory that each rank may use, such as 40GiB; null: all of its GPU, or its share of the "
          "host's memory")
      .more_than(0);
  s.field("machine", &C::machine,
          "What the run is on, as floe plan --gpu takes it: a name, or a file with the rates of "
          "GPUs and network; null: by the name of the GPU, or a CPU")
      .not_empty();
  s.field("chosen_for", &C::chosen_for,
          "Written by floe into the run's config.yaml: what the other keys of strategy were chosen "
          "for. The same question is not asked again");
}

void describe(config::Schema<StrategyConfig>& s) {
  using C = StrategyConfig;
  s.field("auto", &C::automatic,
          "The fastest strategy that fits is chosen when the run starts; null: the keys below say "
          "it. strategy: auto is short for strategy: {auto: {}}");
  s.field("sharding", &C::sharding, strategies_in_words());
  s.field("hybrid_shard_size", &C::hybrid_shard_size,
          str("Ranks that share one copy under ", join(strategies_with_copies(), " or "),
              ", and of what is frozen with frozen.sharding: node"))
      .at_least(1);
  s.field("units", &C::units, "Module classes whose instances are gathered as one unit")
      .not_empty();
  s.field("activation_checkpointing", &C::activation_checkpointing,
          "Module classes that recompute their forward in backward; an empty list is off");
  s.section("activations", &C::activations, "What checkpointed modules keep, and where");
  s.section("mixed_precision", &C::mixed_precision, "Types of parameters, reduction and buffers");
  s.section("frozen", &C::frozen, "How frozen parameters are kept");
  s.field("accumulate", &C::accumulate,
          "Where the gradients of several passes (train.gradient_accumulation) add up before an "
          "update, for what is sliced: reduced (every pass is reduce-scattered: traffic) or local "
          "(whole on each rank: memory); null: local where that raises the planned peak by at most "
          "a tenth and sums lose nothing");
  s.field("cuda_graphs", &C::cuda_graphs,
          "Record steps whose shapes repeat as CUDA graphs, and replay them");
  s.field("cpu_offload", &C::cpu_offload, "Keep slices and optimizer state in host memory");
  s.field("prefetch", &C::prefetch, "Units gathered ahead of the one that computes").at_least(0);
  s.check("units", [](const C& c) { return repeated(c.units); });
  s.check("frozen", [](const C& c) -> std::string {
    const shard::StrategyEntry& sharding = shard::entry_of(c.sharding);
    if (c.frozen.sharding == shard::FrozenSharding::node &&
        sharding.sliced_over != shard::SlicedOver::all_ranks)
      return str("has sharding: node, which has no effect beside ", sharding.name,
                 "; remove it, or choose full_shard or shard_grad_op");
    if (c.frozen.compute && c.mixed_precision.param != DType::bf16)
      return str("has compute: ", name_of(*c.frozen.compute),
                 ", whose products give bf16, but mixed_precision.param is ",
                 name_of(c.mixed_precision.param), "; set it to bf16, or remove compute");
    return "";
  });
  s.check("accumulate", [](const C& c) {
    if (c.cuda_graphs && c.accumulate == shard::Accumulate::local)
      return "is local, but a recorded pass must leave reduced gradients behind; set reduced, or "
             "cuda_graphs to false";
    return "";
  });
  s.check("activation_checkpointing",
          [](const C& c) { return repeated(c.activation_checkpointing); });
  s.check("activations", [](const C& c) {
    const bool set = c.activations.keep != ActivationsConfig::Keep::inputs ||
                     c.activations.offload || c.activations.share != 1;
    if (set && c.activation_checkpointing.empty() && !c.automatic)
      return "has no effect here; name what is checkpointed in activation_checkpointing beside it";
    return "";
  });
}

void describe(config::Schema<PrecisionConfig>& s) {
  s.choice("autocast", &PrecisionConfig::autocast, {"bf16", "fp16"},
           "Computation under torch's autocast in that type; null: off");
  s.field("loss_scale", &PrecisionConfig::loss_scale,
          "First scale of the loss with fp16; null: 65536 with fp16, none otherwise")
      .more_than(0);
}

}  // namespace floe
