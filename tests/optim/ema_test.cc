// The moving average of slices against a plain loop over whole parameters.
#include "floe/optim/ema.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/nn/layers.h"
#include "floe/shard/group/flat_group.h"
#include "tests/support/ranks.h"

namespace floe::optim::ema_test {
namespace {

struct Pair : nn::Module {
  Pair() {
    first = child<nn::Linear>("first", 5, 7);
    second = child<nn::Linear>("second", 7, 3);
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  nn::Ptr<nn::Linear> first, second;
};

std::shared_ptr<shard::Engine> engine_of(int rank, int world,
                                         std::vector<std::string> trainable = {"*"}) {
  shard::ShardOptions options;
  options.world = comm::World::fake(rank, world, test::device());
  options.trainable = std::move(trainable);
  return shard::fully_shard(std::make_shared<Pair>(), {.units = {"Linear"}}, options);
}

TEST(Ema, EqualsAPlainLoop) {
  for (const auto& [rank, world] : {std::pair{0, 1}, {1, 2}, {2, 3}}) {
    const auto engine = engine_of(rank, world);
    Ema ema(*engine, 0.75);
    std::vector<at::Tensor> expected;
    for (const auto* group : engine->trainable_groups())
      expected.push_back(group->slice().to(at::kDouble));
    for (int step = 0; step < 6; ++step) {
      for (std::size_t g = 0; g < expected.size(); ++g) {
        at::Tensor values = engine->trainable_groups()[g]->slice();
        values.add_(at::sin(values * (step + 1)), 0.1);
        expected[g] = 0.75 * expected[g] + 0.25 * values.to(at::kDouble);
      }
      ema.update();
      for (std::size_t g = 0; g < expected.size(); ++g)
        EXPECT_LE((ema.slice(g).to(at::kDouble) - expected[g]).abs().max().item<double>(), 1e-6)
            << "step " << step;
    }
  }
}

TEST(Ema, InPlaceExchangesAndGivesBack) {
  const auto engine = engine_of(0, 1);
  Ema ema(*engine, 0.5);
  at::Tensor values = engine->trainable_groups()[0]->slice();
  values.add_(1);
  ema.update();
  const at::Tensor trained = values.clone(), average = ema.slice(0).clone();
  ASSERT_FALSE(trained.equal(average));
  const at::Tensor x = at::ones({2, 5}).to(test::device());
  const at::AutoGradMode grad_off(false);
  auto& model = dynamic_cast<Pair&>(engine->model());
  const at::Tensor before = nn::call(model, x);
  {
    const Ema::InPlace in_place(ema);
    EXPECT_TRUE(values.equal(average));
    EXPECT_TRUE(ema.slice(0).equal(trained));
    EXPECT_FALSE(nn::call(model, x).equal(before)) << "the forward sees the averages";
  }
  EXPECT_TRUE(values.equal(trained));
  EXPECT_TRUE(ema.slice(0).equal(average));
  EXPECT_TRUE(nn::call(model, x).equal(before));
}

TEST(Ema, OnlyWhatTrainsHasOne) {
  const auto engine = engine_of(0, 1, {"first.bias"});
  EXPECT_EQ(Ema(*engine, 0.9).state_bytes(), 7 * 4);
}

TEST(Ema, RestartTakesTheCurrentValues) {
  const auto engine = engine_of(0, 1);
  Ema ema(*engine, 0.9);
  engine->trainable_groups()[0]->slice().add_(1);
  ema.restart();
  EXPECT_TRUE(ema.slice(0).equal(engine->trainable_groups()[0]->slice()));
}

TEST(Ema, DecaysThatAreNone) {
  const auto engine = engine_of(0, 1);
  for (const double decay : {-0.1, 1.0, 2.0}) EXPECT_THROW(Ema(*engine, decay), ConfigError);
}

}  // namespace
}  // namespace floe::optim::ema_test
