// The resolved strategy, the unit tree and what is said about them: from plans, without memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "floe/core/str.h"
#include "floe/models/transformer.h"
#include "floe/observe/diagnostics/strategy_lines.h"
#include "floe/observe/diagnostics/unit_tree.h"
#include "floe/strategy/strategy_options.h"

namespace floe::diagnostics::plan_lines_test {
namespace {

// 49 984 elements a layer, 16 k an embedding, 16 k a head.
const models::TransformerSize kSize{
    .vocab = 256, .dim = 64, .layers = 3, .heads = 4, .context = 32};

struct Planned {
  explicit Planned(const StrategyConfig& strategy, int world = 2,
                   const models::TransformerSize& size = kSize,
                   std::optional<std::vector<std::string>> trainable = {})
      : model(std::make_shared<models::Transformer>(size)) {
    shard::ShardOptions options = strategy::shard_options_of(strategy);
    options.trainable = std::move(trainable);
    plan = shard::make_plan(*model, strategy::policy_of(strategy, *model), options, world);
  }
  std::shared_ptr<models::Transformer> model;
  shard::ShardPlan plan;
};

bool any_has(const std::vector<std::string>& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

TEST(TreeLines, NamePhases) {
  StrategyConfig strategy;
  strategy.units = {"DecoderLayer"};
  models::Transformer model(kSize);
  shard::ShardOptions options = strategy::shard_options_of(strategy);
  options.sets = {{"first", {"layers.0.*"}, shard::Rest::offload},
                  {"others", {"layers.*"}, shard::Rest::drop},
                  {"nobody", {}}};
  const auto plan = shard::make_plan(model, strategy::policy_of(strategy, model), options, 2);
  const auto lines = tree_lines(plan, 2), notes = plan_notes(plan);
  EXPECT_TRUE(any_has(lines,
                      "phase 'first' trains 50.0 k parameters in 1 unit; while it rests its "
                      "state goes to host memory"))
      << join(lines, "\n");
  EXPECT_TRUE(any_has(lines,
                      "phase 'others' trains 150 k parameters in 3 units; while it rests its "
                      "state is dropped"));
  EXPECT_TRUE(any_has(notes, "nothing trains in phase 'nobody': look at phases"));
  EXPECT_FALSE(any_has(notes, "every parameter is frozen"));
  EXPECT_FALSE(any_has(tree_lines(Planned(strategy).plan, 2), "phase"));
}

TEST(TreeLines, SayWhereGradientsOfSeveralPassesAddUp) {
  StrategyConfig strategy;
  strategy.units = {"DecoderLayer"};
  models::Transformer model(kSize);
  shard::ShardOptions options = strategy::shard_options_of(strategy);
  options.trainable = {{"layers.0.up.*"}};
  const auto lines_of = [&] {
    return tree_lines(shard::make_plan(model, strategy::policy_of(strategy, model), options, 2), 2);
  };
  const std::string set_by_nobody = " (strategy.accumulate is not set)";
  EXPECT_FALSE(any_has(lines_of(), set_by_nobody)) << "one pass";
  options.passes_per_update = 4;
  options.mixed_precision.reduce = at::kFloat;
  EXPECT_TRUE(any_has(lines_of(),
                      "gradients of the 4 passes of an update add up whole on each rank, as memory "
                      "and dtypes allow" +
                          set_by_nobody));
  options.mixed_precision.reduce = at::kBFloat16;  // sums would lose something
  EXPECT_TRUE(any_has(lines_of(),
                      "gradients of the 4 passes of an update add up in slices, as "
                      "memory and dtypes allow" +
                          set_by_nobody));
  options.accumulate = shard::Accumulate::local;
  EXPECT_FALSE(any_has(lines_of(), set_by_nobody)) << "the line of strategy.accumulate says it";
}

TEST(StrategyLines, SayEachValueAndWhereItComesFrom) {
  StrategyConfig strategy;
  strategy.sharding = shard::Strategy::hybrid;
  strategy.hybrid_shard_size = 4;
  strategy.frozen.residency = shard::Residency::resident;
  config::Map sharding;
  sharding["sharding"] =
      config::Value(std::string("hybrid"), config::Origin::of_argument("strategy.sharding=hybrid"));
  config::Map root;
  root["strategy"] = config::Value(sharding);
  const config::Value values(root);
  const PrecisionConfig precision{.autocast = DType::bf16};
  const auto lines = strategy_lines({strategy, precision, "sharded", values, 8});

  EXPECT_EQ(lines[0],
            "sharding is hybrid: slices over 4 neighbours, 2 copies (strategy.sharding, command "
            "line 'strategy.sharding=hybrid')");
  EXPECT_TRUE(
      any_has(lines, "a copy is sliced over 4 ranks (strategy.hybrid_shard_size, default)"));
  EXPECT_TRUE(any_has(lines, "units are DecoderLayer, GatedCrossAttention, "));
  EXPECT_TRUE(any_has(lines, "activation checkpointing is off: all activations are kept"));
  EXPECT_TRUE(any_has(lines, "parameters are gathered and computed with in bf16"));
  EXPECT_TRUE(any_has(lines, "gradients are reduced in fp32"));
  EXPECT_TRUE(any_has(lines, "buffers are fp32"));
  EXPECT_TRUE(any_has(lines, "frozen parameters are resident: a whole copy on every rank"));
  EXPECT_TRUE(any_has(lines, "what is frozen in bf16, as it is gathered (strategy.frozen.dtype"));
  EXPECT_TRUE(any_has(lines, "nothing of them is offloaded (strategy.cpu_offload, default)"));
  EXPECT_TRUE(any_has(lines, "1 unit is gathered ahead"));
  EXPECT_TRUE(any_has(lines, "forwards run under autocast in bf16"));
  EXPECT_TRUE(any_has(lines, "checkpoints are sharded (checkpoint.state_dict_type, default)"));
  EXPECT_FALSE(any_has(lines, "the loss is scaled"));
}

TEST(StrategyLines, SayWhereFrozenSlicesLieAndGradientsAddUp) {
  StrategyConfig strategy;
  const PrecisionConfig precision;
  const config::Value values(config::Map{});
  const auto lines = [&] { return strategy_lines({strategy, precision, "sharded", values, 8}); };
  EXPECT_FALSE(any_has(lines(), "ranks of a node"));
  EXPECT_FALSE(any_has(lines(), "add up"));
  strategy.frozen.sharding = shard::FrozenSharding::node;
  strategy.hybrid_shard_size = 4;
  strategy.accumulate = shard::Accumulate::local;
  EXPECT_TRUE(any_has(lines(),
                      "frozen parameters are sliced over the 4 ranks of a node, what trains over "
                      "all (strategy.frozen.sharding, default)"));
  EXPECT_TRUE(any_has(
      lines(),
      "gradients of several passes add up whole on each rank (strategy.accumulate, default)"));
  strategy.accumulate = shard::Accumulate::reduced;
  EXPECT_TRUE(any_has(lines(), "gradients of several passes add up in slices"));
}

TEST(StrategyLines, ThoseAboutPrecisionAreAmongThem) {
  StrategyConfig strategy;
  strategy.mixed_precision.param = DType::f16;
  const PrecisionConfig precision;
  const config::Value values(config::Map{});
  const StrategySettings settings{strategy, precision, "sharded", values, 8, 1024};
  const auto lines = strategy_lines(settings);
  const auto of_precision = precision_lines(settings);
  EXPECT_EQ(of_precision.back(),
            "the loss is scaled, at first by 1024 (precision.loss_scale, default)");
  EXPECT_NE(std::search(lines.begin(), lines.end(), of_precision.begin(), of_precision.end()),
            lines.end());
}

TEST(StrategyLines, SayWhatCheckpointedModulesKeep) {
  StrategyConfig strategy;
  strategy.activation_checkpointing = {"DecoderLayer"};
  const PrecisionConfig precision;
  const config::Value values(config::Map{});
  const StrategySettings settings{strategy, precision, "sharded", values, 8};
  auto lines = strategy_lines(settings);
  EXPECT_TRUE(any_has(lines,
                      "checkpointed modules keep their inputs and recompute the rest "
                      "(strategy.activations.keep, default)"));
  EXPECT_TRUE(any_has(lines,
                      "what they keep waits for backward on the device "
                      "(strategy.activations.offload, default)"));
  strategy.activations = {ActivationsConfig::Keep::products, /*offload=*/true};
  lines = strategy_lines(settings);
  EXPECT_TRUE(any_has(lines,
                      "and the results of matrix products and attention, and recompute the "
                      "rest (strategy.activations.keep"));
  EXPECT_TRUE(any_has(lines, "waits for backward in host memory (strategy.activations.offload"));
  EXPECT_FALSE(any_has(lines, "strategy.activations.share"));
  strategy.activations.share = 0.5;
  EXPECT_TRUE(any_has(strategy_lines(settings),
                      "of the modules that each entry names the first 50%, rounded up, are "
                      "checkpointed, and the others keep everything (strategy.activations.share, "
                      "default)"));
}

TEST(StrategyLines, CountWhatEachEntryMatched) {
  StrategyConfig strategy;
  strategy.activation_checkpointing = {"layers.[01]"};
  const Planned planned(strategy);
  EXPECT_EQ(
      match_lines(strategy, planned.plan),
      (std::vector<std::string>{
          "strategy.units matched: 'DecoderLayer' 3 modules, 'GatedCrossAttention' no module of "
          "this model, 'PerceiverResampler' no module of this model, 'ViTBlock' no module of "
          "this model",
          "strategy.activation_checkpointing matched: 'layers.[01]' 2 modules"}));
}

TEST(UnitTree, CountsUnitsAndNamesTheLargest) {
  StrategyConfig strategy;
  strategy.activation_checkpointing = {"DecoderLayer"};
  const Planned planned(strategy);
  EXPECT_EQ(tree_lines(planned.plan, 1),
            (std::vector<std::string>{
                "4 units: 3 DecoderLayer, 1 root", "3 checkpointed modules: 3 DecoderLayer",
                "the largest: layers.0 (DecoderLayer, 50.0 k parameters, 50.0 k train)"}));
}

TEST(UnitTree, JsonIsThePlan) {
  StrategyConfig strategy;
  strategy.activation_checkpointing = {"layers.1"};
  const Planned planned(strategy, 2, kSize, {{"layers.2.*"}});
  const auto json = units_json(planned.plan);
  ASSERT_EQ(json.size(), 4U);
  EXPECT_EQ(json[1]["name"], "layers.1");
  EXPECT_EQ(json[1]["class"], "DecoderLayer");
  EXPECT_EQ(json[1]["checkpointed"], true);
  EXPECT_EQ(json[2]["checkpointed"], false);
  EXPECT_EQ(json[2]["groups"][0]["trainable"], true);
  EXPECT_EQ(json[2]["groups"][0]["dtype"], "fp32");
  EXPECT_EQ(json[0]["groups"][0]["dtype"], "bf16");
  EXPECT_EQ(json[3]["name"], "(root)");
  std::int64_t bytes = 0, numel = 0;
  for (const auto& unit : json)
    for (const auto& group : unit["groups"]) {
      bytes += group["shard_bytes"].get<std::int64_t>();
      numel += group["numel"].get<std::int64_t>();
    }
  const auto held = planned.plan.held();
  EXPECT_EQ(bytes, held.trainable_slices + held.frozen_slices);
  std::int64_t all = 0;
  for (const auto& p : planned.plan.parameters) all += p.numel;
  EXPECT_EQ(numel, all);
}

TEST(RankBytes, AreThoseOfThePlan) {
  for (const int world : {1, 2, 3, 8}) {
    const Planned planned(StrategyConfig{}, world, kSize, {{"layers.2.*"}});
    const auto held = planned.plan.held();
    std::int64_t used = 0;
    for (const RankBytes& rank : rank_bytes(planned.plan)) {
      EXPECT_EQ(rank.trainable_bytes, held.trainable_slices);
      EXPECT_EQ(rank.frozen_bytes, held.frozen_slices);
      used += rank.used_bytes();
    }
    std::int64_t real = 0;
    for (const auto& p : planned.plan.parameters) real += p.numel * (p.trainable ? 4 : 2);
    EXPECT_EQ(used, real) << world;
  }
}

TEST(PlanNotes, NothingUnusualIsNoNote) {
  EXPECT_EQ(plan_notes(Planned(StrategyConfig{}).plan), std::vector<std::string>{});
}

TEST(PlanNotes, OnlyTheRoot) {
  StrategyConfig strategy;
  strategy.units = {};
  EXPECT_TRUE(any_has(plan_notes(Planned(strategy).plan), "the root is the only unit"));
}

TEST(PlanNotes, AUnitThatHoldsMost) {
  models::TransformerSize size = kSize;
  size.vocab = 4096;  // 262 k elements in the embedding, as many in the head: both are units
  size.tied = true;
  const auto notes = plan_notes(Planned(StrategyConfig{}, 2, size).plan);
  EXPECT_TRUE(any_has(notes, "unit 'embed' (Embedding) holds 63% of the model")) << join(notes);
}

TEST(PlanNotes, TiedParameters) {
  models::TransformerSize size = kSize;
  size.tied = true;
  const auto notes = plan_notes(Planned(StrategyConfig{}, 2, size).plan);
  EXPECT_TRUE(any_has(notes,
                      "'embed.weight' is tied to head.weight: it is stored, gathered and "
                      "updated once"))
      << join(notes);
}

TEST(PlanNotes, UnevenSlices) {
  // Bias vectors of 64 elements over 48 ranks: two each, the last ranks have none.
  StrategyConfig strategy;
  strategy.units = {"LayerNorm", "Linear", "Embedding"};
  models::TransformerSize size = kSize;
  size.dim = 4;
  size.heads = 2;
  size.vocab = 16;
  const auto notes = plan_notes(Planned(strategy, 48, size).plan);
  EXPECT_TRUE(any_has(notes, "slices are uneven: of ")) << join(notes);
}

TEST(PlanNotes, NothingTrains) {
  const Planned planned(StrategyConfig{});
  shard::ShardOptions options;
  for (auto& p : planned.model->parameters()) p.set_requires_grad(false);
  const auto plan = shard::make_plan(*planned.model, {.units = {"DecoderLayer"}}, options, 2);
  EXPECT_TRUE(any_has(plan_notes(plan), "nothing trains"));
}

}  // namespace
}  // namespace floe::diagnostics::plan_lines_test
