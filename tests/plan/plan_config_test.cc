// The blocks of a plan and what becomes of `strategy:`.
#include <gtest/gtest.h>

#include <algorithm>

#include "floe/strategy/strategy_options.h"
#include "tests/config/expect_error.h"
#include "tests/plan/planned.h"

namespace floe::plan_config_test {
namespace {

using test::config_error;
using test::expect_part;
using test::planned;
using test::small_config;

TEST(PlanConfig, TheModelsOwnRuleIsAdaptersElseEverything) {
  EXPECT_EQ(planned().trainable_numel, 39);
  EXPECT_EQ(planned({"model.adapter=0"}).frozen_numel, 0);
  EXPECT_EQ(planned({"train.trainable=['norm.*']"}).trainable_numel, 8);
}

TEST(PlanConfig, WorldComesFromTheKeyElseFromDist) {
  const std::string dist = "dist={init: 'tcp://host:29500', rank: 0, world_size: 6}";
  EXPECT_EQ(small_config().world_size(), 4);
  EXPECT_EQ(small_config({"~world"}).world_size(), 1);
  EXPECT_EQ(small_config({"~world", dist}).world_size(), 6);
  expect_part(config_error([&] { small_config({dist}); }),
              "world is 4, but dist.world_size is 6; remove one of them");
}

TEST(PlanConfig, WrongSizes) {
  const auto error = [](const std::string& change) {
    return config_error([&] { small_config({change}); });
  };
  expect_part(error("model.heads=3"), "model.heads is 3, but must divide model.dim, which is 4");
  expect_part(error("model.layers=0"), "model.layers is 0, but must be from 1 to 10000");
  expect_part(error("model.vocab=1e12"), "must be from 1 to 100000000");
  expect_part(error("~model.dim"), "model.dim is missing; set it");
  expect_part(error("train.optimizer.momentum=0.9"), "has no effect with adamw");
}

TEST(PlanConfig, CountsWhatTheOptimizerKeeps) {
  const auto state = [](const std::string& optimizer) {
    return planned({"train.optimizer=" + optimizer}).holdings.held.optimizer_state;
  };
  const std::int64_t one = state("{type: lion}");
  EXPECT_GT(one, 0);
  EXPECT_EQ(state("{type: adamw}"), 2 * one);
  EXPECT_EQ(state("{type: sgd}"), 0);
  EXPECT_EQ(state("{type: sgd, momentum: 0.9}"), one);
}

TEST(StrategyOptions, SaysWhatTheBlockSays) {
  StrategyConfig strategy;
  strategy.sharding = shard::Strategy::hybrid;
  strategy.hybrid_shard_size = 2;
  strategy.activation_checkpointing = {"DecoderLayer"};
  strategy.activations = {ActivationsConfig::Keep::products, /*offload=*/true};
  strategy.mixed_precision = {DType::f16, DType::bf16, DType::f32};
  strategy.frozen.residency = shard::Residency::automatic;
  strategy.frozen.memory_budget = config::ByteSize{4096};
  strategy.frozen.dtype = DType::f32;
  strategy.frozen.sharding = shard::FrozenSharding::node;
  strategy.accumulate = shard::Accumulate::local;
  strategy.cpu_offload = true;
  strategy.prefetch = 3;
  const shard::ShardOptions options = strategy::shard_options_of(strategy);
  EXPECT_EQ(options.strategy, shard::Strategy::hybrid);
  EXPECT_EQ(options.hybrid_shard_size, 2);
  EXPECT_EQ(options.activation_checkpointing, strategy.activation_checkpointing);
  EXPECT_TRUE(options.kept_activations.products && options.kept_activations.in_host);
  EXPECT_EQ(options.mixed_precision.param, at::kHalf);
  EXPECT_EQ(options.mixed_precision.reduce, at::kBFloat16);
  EXPECT_EQ(options.mixed_precision.buffer, at::kFloat);
  EXPECT_EQ(options.frozen.residency, shard::Residency::automatic);
  EXPECT_EQ(options.frozen.memory_budget_bytes, 4096);
  EXPECT_EQ(options.frozen.dtype, at::kFloat);
  EXPECT_EQ(options.frozen.sharding, shard::FrozenSharding::node);
  EXPECT_EQ(options.accumulate, shard::Accumulate::local);
  EXPECT_TRUE(options.cpu_offload);
  EXPECT_EQ(options.prefetch, 3);
  strategy.frozen.dtype = DType::i8;
  EXPECT_EQ(strategy::shard_options_of(strategy).frozen.dtype, at::kChar);
  strategy.frozen.dtype = DType::f8_e4m3;
  EXPECT_EQ(strategy::shard_options_of(strategy).frozen.dtype, at::kFloat8_e4m3fn);
}

TEST(StrategyOptions, EveryKindOfSharding) {
  using Sharding = shard::Strategy;
  for (const auto& [name, sharding] : enum_names(Sharding{})) {
    StrategyConfig strategy;
    strategy.sharding = sharding;
    EXPECT_EQ(shard::name_of(strategy::shard_options_of(strategy).strategy), name);
  }
}

TEST(StrategyOptions, WhatTheEngineRefusesIsSaidInTheWordsOfTheConfiguration) {
  EXPECT_EQ(strategy::with_config_keys("Policy::units: 'A' is none; ShardOptions::sets or "
                                       "ShardOptions::trainable, not Policy::units"),
            "strategy.units: 'A' is none; phases or train.trainable, not strategy.units");
  models::Transformer model({});
  shard::ShardOptions options;
  options.strategy = shard::Strategy::hybrid;
  options.hybrid_shard_size = 3;
  try {
    strategy::in_words_of_config([&] { return shard::make_plan(model, {}, options, 4); });
    FAIL() << "3 does not divide 4";
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(),
                 "strategy.hybrid_shard_size 3 does not divide the 4 ranks; choose one that does");
  }
}

// Who keeps its state needs it whole, whatever another set says that shares some parameters.
TEST(PlannedSets, AParameterOfTwoSetsRestsAsTheMilderOneSays) {
  models::Transformer model({});
  using shard::Rest;
  for (const auto& [first, second] :
       {std::pair{Rest::keep, Rest::drop}, {Rest::drop, Rest::offload}}) {
    shard::ShardOptions options;
    options.sets = {{"some", {"norm.*"}, first}, {"all", {"*"}, second}};
    const auto plan = shard::make_plan(model, {}, options, 2);
    int shared = 0;
    for (const auto& group : plan.groups) {
      const bool of_both = group.sets == shard::SetMask::all(2);
      shared += of_both;
      EXPECT_EQ(group.rest, of_both ? std::min(first, second) : second);
    }
    EXPECT_EQ(shared, 1);
  }
}

TEST(StrategyOptions, OfTheDefaultUnitsThoseThatTheModelHas) {
  const models::Transformer model({});
  const StrategyConfig standard;
  EXPECT_EQ(strategy::policy_of(standard, model).units, std::vector<std::string>{"DecoderLayer"});
  StrategyConfig own;
  own.units = {"DecoderLayer", "ViTBlock"};
  EXPECT_EQ(strategy::policy_of(own, model).units, own.units) << "the engine rejects ViTBlock";
}

}  // namespace
}  // namespace floe::plan_config_test
