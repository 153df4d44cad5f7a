// The states of groups and of their gradients, and the memory that each of them stands for.
#include <gtest/gtest.h>

#include <optional>

#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/models/transformer.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"

namespace floe::states_test {
namespace {

using shard::GradientState;
using shard::GroupState;

const models::TransformerSize kSize{.vocab = 50, .dim = 16, .layers = 3, .heads = 2, .context = 8};

struct Job {
  explicit Job(int world, shard::Strategy strategy = shard::Strategy::full_shard,
               std::optional<shard::Accumulate> accumulate = {})
      : model(std::make_shared<models::Transformer>(kSize)) {
    shard::ShardOptions options;
    options.world = comm::World::fake(0, world);
    options.strategy = strategy;
    options.hybrid_shard_size = 2;
    options.accumulate = accumulate;
    engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
  }
  at::Tensor loss() const {
    const at::Tensor ids = at::arange(16, at::kLong).view({2, 8});
    return models::next_token_loss(nn::call(*model, ids), ids);
  }
  void expect(GroupState groups, GradientState gradients) const {
    for (const auto& group : engine->groups()) {
      EXPECT_EQ(group->state(), groups) << group->name();
      EXPECT_EQ(group->gradients().state(), gradients) << group->name();
    }
  }

  std::shared_ptr<models::Transformer> model;
  std::shared_ptr<shard::Engine> engine;
};

TEST(States, OfAStep) {
  Job job(2);
  job.expect(GroupState::sliced, GradientState::none);
  EXPECT_EQ(job.engine->memory().gradient_slices, 0);
  job.loss().backward();
  job.expect(GroupState::sliced, GradientState::reduced);
  EXPECT_EQ(job.engine->memory().pool_held, 0);
  EXPECT_EQ(job.engine->memory().gradient_pool_held, 0);
  EXPECT_EQ(job.engine->memory().gradient_slices, job.engine->plan().held().gradient_slices);
  job.loss().backward();
  job.expect(GroupState::sliced, GradientState::reduced);
  job.engine->clear_gradients();
  job.expect(GroupState::sliced, GradientState::none);
  EXPECT_EQ(job.engine->memory().gradient_slices, 0);
}

TEST(States, BetweenForwardAndBackward) {
  Job job(2, shard::Strategy::shard_grad_op);
  {
    const at::Tensor loss = job.loss();
    std::int64_t gathered = 0;
    for (const auto& group : job.engine->groups())
      if (group->state() == GroupState::gathered) gathered += group->plan().gathered_bytes();
    EXPECT_GT(gathered, 0);
    EXPECT_EQ(job.engine->memory().pool_used, gathered);
  }
  job.expect(GroupState::sliced,
             GradientState::none);  // the graph is gone, and what it held with it
}

TEST(States, WithoutGradientSync) {
  Job job(2, shard::Strategy::full_shard, shard::Accumulate::local);
  std::int64_t whole = 0;
  for (const auto& group : job.engine->groups()) whole += group->plan().gradient_bytes();
  job.engine->set_gradient_sync(false);
  for (int micro = 0; micro < 2; ++micro) {
    job.loss().backward();
    job.expect(GroupState::sliced, GradientState::collecting);
    EXPECT_EQ(job.engine->memory().gradient_slices, 0);
    EXPECT_EQ(job.engine->memory().gradient_pool_held, whole);
  }
  job.engine->set_gradient_sync(true);
  job.loss().backward();
  job.expect(GroupState::sliced, GradientState::reduced);
  EXPECT_EQ(job.engine->memory().gradient_pool_held, 0);
}

TEST(States, WithoutGradientSyncWhereReducedGradientsAddUp) {
  Job job(2, shard::Strategy::full_shard, shard::Accumulate::reduced);
  job.engine->set_gradient_sync(false);
  for (int micro = 0; micro < 2; ++micro) {
    job.loss().backward();
    job.expect(GroupState::sliced, GradientState::reduced);
    EXPECT_EQ(job.engine->memory().gradient_slices, job.engine->plan().held().gradient_slices);
    EXPECT_EQ(job.engine->memory().gradient_pool_held, 0);
  }
}

// Slices add up without those of the copies until the last pass of an update.
TEST(States, WithoutGradientSyncBesideCopies) {
  Job job(4, shard::Strategy::hybrid, shard::Accumulate::reduced);
  job.engine->set_gradient_sync(false);
  job.loss().backward();
  job.expect(GroupState::sliced, GradientState::partial);
  job.loss().backward();
  job.expect(GroupState::sliced, GradientState::partial);
  EXPECT_EQ(job.engine->memory().gradient_pool_held, 0);
  EXPECT_THROW(job.engine->agree(), ShardError);
  job.engine->set_gradient_sync(true);
  job.loss().backward();
  job.expect(GroupState::sliced, GradientState::reduced);
  job.engine->agree();
}

TEST(States, WithoutGradientSyncWhereNothingIsSliced) {
  Job job(2, shard::Strategy::no_shard);
  job.engine->set_gradient_sync(false);
  for (int micro = 0; micro < 2; ++micro) {
    job.loss().backward();
    job.expect(GroupState::in_place, GradientState::local);
    EXPECT_EQ(job.engine->memory().gradient_pool_held, 0) << "added up where they lie";
  }
  EXPECT_THROW(job.engine->agree(), ShardError);
  job.engine->set_gradient_sync(true);
  job.loss().backward();
  job.expect(GroupState::in_place, GradientState::reduced);
  EXPECT_EQ(job.engine->memory().gradient_pool_peak, 0);
}

TEST(States, OfOneRankAlone) {
  Job job(1);
  job.expect(GroupState::in_place, GradientState::none);
  for (int micro = 0; micro < 2; ++micro) {
    job.loss().backward();
    job.expect(GroupState::in_place, GradientState::local);
    EXPECT_EQ(job.engine->memory().gradient_pool_held, 0);
  }
}

TEST(States, WhichMayFollow) {
  EXPECT_TRUE(may_follow(GroupState::sliced, GroupState::gathering));
  EXPECT_FALSE(may_follow(GroupState::sliced, GroupState::gathered));
  EXPECT_FALSE(may_follow(GroupState::gathered, GroupState::gathering));
  EXPECT_FALSE(may_follow(GroupState::in_place, GroupState::gathering));
  EXPECT_FALSE(may_follow(GradientState::none, GradientState::reducing));
  EXPECT_FALSE(may_follow(GradientState::collecting, GradientState::reduced));
  EXPECT_FALSE(may_follow(GradientState::reducing, GradientState::collecting));
  EXPECT_TRUE(may_follow(GradientState::reduced, GradientState::collecting));
  EXPECT_FALSE(may_follow(GradientState::reduced, GradientState::reducing));
  EXPECT_TRUE(may_follow(GradientState::partial, GradientState::reducing));
  EXPECT_TRUE(may_follow(GradientState::local, GradientState::reducing));
  EXPECT_FALSE(may_follow(GradientState::collecting, GradientState::partial));
}

}  // namespace
}  // namespace floe::states_test
