// What several ranks hold the same copy of: a single bit that differs is found, and by all ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "floe/core/error.h"
#include "floe/core/str.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/flat_group.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

namespace floe::copies_test {
namespace {

using shard::Strategy;

struct Trained {
  std::shared_ptr<comm::World> world = test::join_world();
  test::Recipe recipe;
  std::shared_ptr<models::Transformer> model;
  std::shared_ptr<shard::Engine> engine;

  explicit Trained(Strategy strategy) {
    recipe.size = {.vocab = 61, .dim = 24, .layers = 2, .heads = 3, .context = 12, .adapter = 5};
    recipe.trainable = {"*.adapter.*", "norm.*"};
    recipe.device = test::device();
    model = std::make_shared<models::Transformer>(recipe.size);
    shard::ShardOptions options;
    options.world = world;
    options.strategy = strategy;
    options.hybrid_shard_size = 2;
    options.trainable = recipe.trainable;
    options.seed = recipe.seed;
    engine =
        shard::fully_shard(model, {.units = {"DecoderLayer"}, .lone_unit_numel = 1000}, options);
    optim::AdamW optimizer(*engine, recipe.adamw);
    for (int step = 0; step < 2; ++step) {
      const at::Tensor ids = test::batch_of(recipe, step, 0, world->rank());
      models::next_token_loss(nn::call(*model, ids), ids).backward();
      engine->agree();
      optimizer.step(recipe.lr);
      engine->clear_gradients();
    }
  }

  // The lowest bit of the last element of a group's slice, on one rank.
  std::string flip(int rank, bool trainable) const {
    const shard::FlatGroup* found = nullptr;
    for (const auto& group : engine->groups())
      if (group->plan().trainable == trainable) found = group.get();
    const at::Tensor bits = found->values().view(at::kInt).narrow(0, 3, 1);
    if (world->rank() == rank) bits.bitwise_xor_(1);
    return found->name();
  }

  std::string problem() const {
    try {
      engine->verify_copies();
    } catch (const ShardError& e) {
      return e.what();
    }
    return "";
  }
};

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
}

TEST_RANKS(Copies, OfAHybridMesh, 4) {
  const Trained job(Strategy::hybrid);
  const auto before = job.world->group()->traffic();
  EXPECT_EQ(job.problem(), "");
  const auto after = job.world->group()->traffic();
  EXPECT_EQ(after.all_gathers, before.all_gathers + 1);
  EXPECT_LE(after.all_gather_bytes - before.all_gather_bytes,
            static_cast<std::int64_t>(4 * 16 * job.engine->groups().size()));
  for (const bool trainable : {false, true}) {
    const std::string name = job.flip(3, trainable);
    expect_in(job.problem(), str("the copies of '", name, "' (slice 1)"));
    expect_in(job.problem(), "rank 3 has other values than rank 1;");
    job.flip(3, trainable);
    EXPECT_EQ(job.problem(), "");
  }
}

TEST_RANKS(Copies, TheMinorityIsNamed, 4) {
  const Trained job(Strategy::no_shard);
  EXPECT_EQ(job.problem(), "");
  job.flip(0, /*trainable=*/true);
  expect_in(job.problem(), "rank 0 has other values than rank 1, rank 2, rank 3;");
}

TEST_RANKS(Copies, ThereAreNoneWithoutReplicas, 4) {
  const Trained job(Strategy::full_shard);
  const auto before = job.world->group()->traffic();
  job.flip(2, /*trainable=*/true);
  EXPECT_EQ(job.problem(), "");
  EXPECT_EQ(job.world->group()->traffic().all_gathers, before.all_gathers);
}

}  // namespace
}  // namespace floe::copies_test
