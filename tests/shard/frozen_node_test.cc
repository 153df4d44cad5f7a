// Frozen groups sliced inside of a node, what trains over all ranks (Note [Frozen slices inside a
// node]): four real ranks as 2 x 2, each with data of its own.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "floe/core/error.h"
#include "floe/core/str.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"
#include "tests/support/counter.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

namespace floe::frozen_node_test {
namespace {

using shard::Event;
using shard::FrozenSharding;
using shard::Strategy;

const shard::Policy kPolicy{.units = {"DecoderLayer"}, .lone_unit_numel = 1000};

test::Recipe recipe_of(std::vector<std::string> trainable,
                       std::optional<at::ScalarType> frozen_dtype = {}) {
  test::Recipe recipe;
  recipe.size = {.vocab = 61, .dim = 24, .layers = 3, .heads = 3, .context = 12, .adapter = 5};
  recipe.trainable = std::move(trainable);
  recipe.frozen_dtype = frozen_dtype;
  recipe.device = test::device();
  return recipe;
}

shard::ShardOptions options_of(const test::Recipe& recipe, std::shared_ptr<comm::World> world,
                               Strategy strategy, FrozenSharding frozen = FrozenSharding::node) {
  shard::ShardOptions options;
  options.world = std::move(world);
  options.strategy = strategy;
  options.hybrid_shard_size = 2;
  options.frozen.sharding = frozen;
  options.frozen.dtype = recipe.frozen_dtype;
  options.trainable = recipe.trainable;
  options.seed = recipe.seed;
  return options;
}

// Five steps against one process that has the batches of all ranks, and what each rank holds and
// moves against the plan.
void check(const test::Recipe& recipe, Strategy strategy,
           const std::shared_ptr<comm::World>& world) {
  SCOPED_TRACE(str(name_of(strategy), ", ", join(recipe.trainable)));
  test::ReferenceTrainer reference(recipe, world->size());
  const auto model = std::make_shared<models::Transformer>(recipe.size);
  const auto engine = shard::fully_shard(model, kPolicy, options_of(recipe, world, strategy));
  optim::AdamW optimizer(*engine, recipe.adamw);
  test::CountingObserver counts;
  engine->add_observer(&counts);
  const shard::MovedBytes moved = engine->plan().moved();
  const shard::HeldBytes held = engine->plan().held();
  for (const auto& group : engine->groups()) {
    EXPECT_EQ(group->plan().shard_size, group->plan().trainable ? 4 : 2) << group->name();
    EXPECT_EQ(group->plan().replicas, group->plan().trainable ? 1 : 2) << group->name();
    if (!group->plan().trainable) {
      EXPECT_EQ(group->replica(), world->rank() / 2) << "neighbours share a copy";
    }
  }
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE(str("step ", step));
    counts.clear();
    const auto expected = reference.step();
    const at::Tensor ids = test::batch_of(recipe, step, 0, world->rank());
    test::seed_forward(step, 0, world->rank());
    models::next_token_loss(nn::call(*model, ids), ids).backward();
    if (step > 0) {
      EXPECT_EQ(counts.gathers().count, moved.gathers);
      EXPECT_EQ(counts.gathers().bytes, moved.gathered);
    }
    EXPECT_EQ(counts.of(Event::Kind::reduce).count, moved.reduce_scatters);
    EXPECT_EQ(counts.of(Event::Kind::replicate).count, 0) << "what trains has no copies";
    EXPECT_EQ(engine->memory().frozen_slices, held.frozen_slices);
    EXPECT_EQ(engine->memory().trainable_slices, held.trainable_slices);
    for (const auto& [name, gradient] : expected.gradients) {
      const double difference = (engine->full_gradient(name) - gradient).abs().max().item<double>();
      EXPECT_LE(difference, step == 0 && world->device().is_cpu() ? 0 : 1e-6 * (step + 1)) << name;
    }
    const auto agreement = engine->agree();
    EXPECT_NEAR(agreement.gradient_norm, expected.gradient_norm, 1e-5 * expected.gradient_norm);
    optimizer.step(recipe.lr);
    engine->clear_gradients();
  }
  engine->verify_copies();
  engine->remove_observer(&counts);
}

TEST_RANKS(FrozenNode, TrainsLikeOneProcess, 4) {
  const auto world = test::join_world();
  const std::vector<std::string> some{"*.adapter.*", "norm.*", "layers.2.norm1.*"};
  check(recipe_of(some), Strategy::full_shard, world);
  check(recipe_of(some), Strategy::shard_grad_op, world);
  check(recipe_of({"layers.1.*"}), Strategy::full_shard, world);
  check(recipe_of(some, at::kChar), Strategy::full_shard, world);
}

// Twice the frozen slices, the same of what trains, and as many gathers of as many elements.
TEST(FrozenNode, CostsMemoryOfFrozenSlicesAlone) {
  const test::Recipe recipe = recipe_of({"*.adapter.*"});
  models::Transformer model(recipe.size);
  const auto plan_of = [&](FrozenSharding frozen) {
    return shard::make_plan(model, kPolicy,
                            options_of(recipe, nullptr, Strategy::full_shard, frozen), 4);
  };
  const shard::ShardPlan all = plan_of(FrozenSharding::all), node = plan_of(FrozenSharding::node);
  EXPECT_EQ(node.held().trainable_slices, all.held().trainable_slices);
  EXPECT_EQ(node.held().optimizer_state, all.held().optimizer_state);
  EXPECT_GT(node.held().frozen_slices, all.held().frozen_slices * 19 / 10);
  EXPECT_LE(node.held().frozen_slices, all.held().frozen_slices * 2);
  EXPECT_EQ(node.moved().gathers, all.moved().gathers);
  EXPECT_LE(node.moved().gathered, all.moved().gathered) << "less padding, if anything";
  EXPECT_EQ(node.moved().reduce_scattered, all.moved().reduce_scattered);
  EXPECT_EQ(node.moved().all_reduces, 0) << "copies of what is frozen are never summed";

  auto options = options_of(recipe, nullptr, Strategy::full_shard);
  options.hybrid_shard_size = 3;
  EXPECT_THROW(shard::make_plan(model, kPolicy, options, 4), ConfigError);
}

TEST_RANKS(FrozenNode, RanksMustAgreeOnIt, 4) {
  const auto world = test::join_world();
  const test::Recipe recipe = recipe_of({"*.adapter.*"});
  const auto frozen = world->rank() == 3 ? FrozenSharding::all : FrozenSharding::node;
  EXPECT_THROW(shard::fully_shard(std::make_shared<models::Transformer>(recipe.size), kPolicy,
                                  options_of(recipe, world, Strategy::full_shard, frozen)),
               ConfigError);
}

TEST_RANKS(FrozenNode, ACopyThatDiffersIsFound, 4) {
  const auto world = test::join_world();
  const test::Recipe recipe = recipe_of({"*.adapter.*"});
  const auto engine = shard::fully_shard(std::make_shared<models::Transformer>(recipe.size),
                                         kPolicy, options_of(recipe, world, Strategy::full_shard));
  engine->verify_copies();
  if (world->rank() == 2)
    for (const auto& group : engine->groups())
      if (!group->plan().trainable) group->slice()[0] += 1;
  EXPECT_THROW(engine->verify_copies(), ShardError);
}

// What was frozen inside of a node begins to train over all ranks, with the values that it had.
TEST_RANKS(FrozenNode, WhatWakesUpIsSlicedOverAllRanks, 4) {
  const auto world = test::join_world();
  const test::Recipe recipe = recipe_of({"*.adapter.*"});
  const auto model = std::make_shared<models::Transformer>(recipe.size);
  const auto engine =
      shard::fully_shard(model, kPolicy, options_of(recipe, world, Strategy::full_shard));
  const std::string name = "layers.1.norm1.weight", frozen = "layers.2.norm1.weight";
  const at::Tensor before = engine->full_parameter(name).clone();
  const at::Tensor still = engine->full_parameter(frozen).clone();
  engine->set_trainable({"layers.1.*"});
  for (const auto& group : engine->groups())
    EXPECT_EQ(group->plan().shard_size, group->plan().trainable ? 4 : 2) << group->name();
  EXPECT_TRUE(engine->full_parameter(name).equal(before));
  EXPECT_TRUE(engine->full_parameter(frozen).equal(still));
  const at::Tensor ids = test::batch_of(recipe, 0, 0, world->rank());
  models::next_token_loss(nn::call(*model, ids), ids).backward();
  EXPECT_TRUE(engine->agree().finite);
  EXPECT_TRUE(engine->full_gradient(name).defined());
}

}  // namespace
}  // namespace floe::frozen_node_test
