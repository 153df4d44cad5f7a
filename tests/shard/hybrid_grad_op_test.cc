// hybrid_grad_op: slices over neighbours, copies across, and gathered parameters kept from forward
// to backward. Real ranks in a grid of 2 x 2, each with data of its own.
#include <gtest/gtest.h>

#include "floe/core/str.h"
#include "floe/shard/engine.h"
#include "floe/shard/plan/plan.h"
#include "tests/support/counter.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

namespace floe::hybrid_grad_op_test {
namespace {

using shard::Event;
using shard::Strategy;

test::Recipe recipe_of(std::vector<std::string> trainable) {
  test::Recipe recipe;
  recipe.size = {.vocab = 61, .dim = 24, .layers = 3, .heads = 3, .context = 12, .adapter = 5};
  recipe.trainable = std::move(trainable);
  recipe.device = test::device();
  return recipe;
}

shard::ShardOptions options_of(const test::Recipe& recipe, std::shared_ptr<comm::World> world,
                               Strategy strategy) {
  shard::ShardOptions options;
  options.world = std::move(world);
  options.strategy = strategy;
  options.hybrid_shard_size = 2;
  options.trainable = recipe.trainable;
  options.seed = recipe.seed;
  return options;
}

const shard::Policy kPolicy{.units = {"DecoderLayer"}, .lone_unit_numel = 1000};

// Five steps against one process that has the batches of all ranks, and what each of them moves
// against the plan.
void check(const test::Recipe& recipe, const std::shared_ptr<comm::World>& world) {
  test::ReferenceTrainer reference(recipe, world->size());
  const auto model = std::make_shared<models::Transformer>(recipe.size);
  const auto engine =
      shard::fully_shard(model, kPolicy, options_of(recipe, world, Strategy::hybrid_grad_op));
  optim::AdamW optimizer(*engine, recipe.adamw);
  test::CountingObserver counts;
  engine->add_observer(&counts);
  const shard::MovedBytes moved = engine->plan().moved();

  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE(str("step ", step));
    counts.clear();
    const auto expected = reference.step();
    const at::Tensor ids = test::batch_of(recipe, step, 0, world->rank());
    test::seed_forward(step, 0, world->rank());
    const at::Tensor loss = models::next_token_loss(nn::call(*model, ids), ids);
    loss.backward();
    EXPECT_NEAR(loss.item<double>(), expected.losses[static_cast<std::size_t>(world->rank())],
                1e-6 * std::max(1, 10 * step));
    EXPECT_EQ(counts.gathers().count, moved.gathers);
    EXPECT_EQ(counts.gathers().bytes, moved.gathered);
    EXPECT_EQ(counts.of(Event::Kind::reduce).count, moved.reduce_scatters);
    EXPECT_EQ(counts.of(Event::Kind::replicate).count, moved.all_reduces);
    EXPECT_EQ(counts.of(Event::Kind::replicate).bytes, moved.all_reduced);
    for (const auto& [name, gradient] : expected.gradients)
      EXPECT_LE((engine->full_gradient(name) - gradient).abs().max().item<double>(),
                1e-6 * (step + 1))
          << name;
    const auto agreement = engine->agree();
    EXPECT_NEAR(agreement.gradient_norm, expected.gradient_norm, 1e-5 * expected.gradient_norm);
    optimizer.step(recipe.lr);
    engine->clear_gradients();
  }
  engine->remove_observer(&counts);
}

TEST_RANKS(HybridGradOp, TrainsLikeOneProcess, 4) {
  const auto world = test::join_world();
  check(recipe_of({"*"}), world);
  check(recipe_of({"*.adapter.*", "norm.*"}), world);
}

TEST(HybridGradOp, GathersOnceWhereHybridGathersTwice) {
  const test::Recipe recipe = recipe_of({"*"});
  models::Transformer model(recipe.size);
  const auto plan_of = [&](Strategy strategy) {
    return shard::make_plan(model, kPolicy, options_of(recipe, nullptr, strategy), 4);
  };
  const shard::ShardPlan hybrid = plan_of(Strategy::hybrid),
                         kept = plan_of(Strategy::hybrid_grad_op);
  for (const shard::PlannedGroup& group : kept.groups) {
    EXPECT_EQ(group.shard_size, 2);
    EXPECT_EQ(group.replicas, 2);
    EXPECT_EQ(kept.gathers_per_step(group), 1);
  }
  EXPECT_LT(kept.moved().gathers, hybrid.moved().gathers);
  EXPECT_EQ(kept.moved().reduce_scattered, hybrid.moved().reduce_scattered);
  EXPECT_EQ(kept.moved().all_reduced, hybrid.moved().all_reduced);
  EXPECT_GT(kept.pool_bytes(), hybrid.pool_bytes());
}

}  // namespace
}  // namespace floe::hybrid_grad_op_test
