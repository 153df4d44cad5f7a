// Gradients that products write into their place (Note [Gradients in their place]): the numbers of
// autograd alone, whatever the model does with a weight, and no copy on the way.
#include "floe/nn/products/gradient_place.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "floe/nn/layers.h"
#include "floe/nn/products/linear.h"
#include "floe/shard/engine.h"
#include "tests/support/ranks.h"
#include "tests/support/torch_calls.h"

namespace floe::gradient_place_test {
namespace {

using shard::Strategy;

constexpr std::int64_t kDim = 24, kWide = 40;

// One weight is used twice, one has a bias, one none; the input of the first needs no gradient.
struct Block : nn::Module {
  Block() {
    square = child<nn::Linear>("square", kDim, kDim);
    up = child<nn::Linear>("up", kDim, kWide);
    down = child<nn::Linear>("down", kWide, kDim, false);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = at::gelu(square(at::gelu(square(x))));
    if (fails) throw std::runtime_error("in the forward");
    return down(at::gelu(up(y))) + y;
  }
  nn::Ptr<nn::Linear> square, up, down;
  bool fails = false;
};
struct Model : nn::Module {
  Model() {
    first = child<Block>("first");
    second = child<Block>("second");
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x)).square().mean(); }
  nn::Ptr<Block> first, second;
};

at::Tensor input(int pass, int rank) {
  at::manual_seed(static_cast<std::uint64_t>(17 * pass + rank));
  return at::randn({3, 5, kDim});
}

using Gradients = std::map<std::string, at::Tensor>;

// By one process without an engine: sums over passes of means over ranks.
Gradients by_autograd(int ranks, const std::vector<int>& passes) {
  Model model;
  nn::materialize(model, 5);
  Gradients all;
  for (const int pass : passes)
    for (int rank = 0; rank < ranks; ++rank) nn::call(model, input(pass, rank)).backward();
  for (const nn::NamedParameter& parameter : nn::named_parameters(model))
    all[parameter.name] = parameter.tensor.grad() / ranks;
  return all;
}

struct Job {
  Job(const std::shared_ptr<comm::World>& world, Strategy strategy)
      : model(std::make_shared<Model>()), rank(world->rank()) {
    shard::ShardOptions options;
    options.world = world;
    options.strategy = strategy;
    options.seed = 5;
    engine = shard::fully_shard(model, {.units = {"Block"}}, options);
  }
  void pass(int number) { nn::call(*model, input(number, rank)).backward(); }
  void expect(const Gradients& want) {
    for (const auto& [name, gradient] : want)
      EXPECT_TRUE(at::allclose(engine->full_gradient(name), gradient, 1e-4, 1e-7)) << name;
  }

  std::shared_ptr<Model> model;
  int rank;
  std::shared_ptr<shard::Engine> engine;
};

void in_every_way(const std::shared_ptr<comm::World>& world) {
  for (const Strategy strategy :
       {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard}) {
    SCOPED_TRACE(shard::name_of(strategy));
    Job job(world, strategy);
    for (int step = 0; step < 2; ++step) {
      const at::Tensor loss = nn::call(*job.model, input(step, job.rank));
      {
        const test::Copies copies;
        loss.backward();
        EXPECT_EQ(copies.of(kWide * kDim), 0);  // up and down
        EXPECT_EQ(copies.of(kDim * kDim), 2);   // square: a sum that autograd made
      }
      job.expect(by_autograd(world->size(), {step}));
      job.engine->clear_gradients();
    }

    // Passes that add up, with and without a reduction in between.
    for (const bool every : {true, false}) {
      job.engine->set_gradient_sync(every);
      job.pass(3);
      job.engine->set_gradient_sync(true);
      job.pass(4);
      job.expect(by_autograd(world->size(), {3, 4}));
      job.engine->clear_gradients();
    }

    // After a pass that broke.
    job.model->second->fails = true;
    EXPECT_THROW(job.pass(5), std::runtime_error);
    job.engine->abandon();
    job.model->second->fails = false;
    job.pass(6);
    job.expect(by_autograd(world->size(), {6}));
    job.engine->clear_gradients();
  }
}
TEST_RANKS(GradientPlace, OneRank, 1) { in_every_way(test::join_world()); }
TEST_RANKS(GradientPlace, TwoRanks, 2) { in_every_way(test::join_world()); }
TEST_RANKS(GradientPlace, ThreeRanks, 3) { in_every_way(test::join_world()); }

// Gradients that somebody asks for are theirs: no later pass writes into them. A copy of a
// parameter has no place.
TEST_RANKS(GradientPlace, IsNotForOthersOneRank, 1) {
  Job job(test::join_world(), Strategy::no_shard);
  const at::Tensor weight = job.model->first->down->weight;
  const auto asked_for = [&](int pass) {
    return torch::autograd::grad({nn::call(*job.model, input(pass, 0))}, {weight})[0];
  };
  const at::Tensor got = asked_for(1), kept = got.clone();
  job.pass(2);
  job.expect(by_autograd(1, {2}));
  EXPECT_TRUE(at::equal(got, kept));
  EXPECT_TRUE(at::allclose(got, by_autograd(1, {1}).at("first.down.weight"), 1e-4, 1e-7));
  job.engine->clear_gradients();

  const at::Tensor copy = weight.detach().requires_grad_();
  EXPECT_TRUE(nn::gradient_place(weight));
  EXPECT_FALSE(nn::gradient_place(copy));
  nn::linear(at::ones({2, kWide}), copy).sum().backward();
  EXPECT_TRUE(copy.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
}

// A layer that is used before a checkpointed module, in it and behind it: the backward of the
// module, which has a graph of its own, comes while the product behind it has written a gradient
// that autograd still adds to.
struct Inside : nn::Module {
  explicit Inside(const nn::Ptr<nn::Linear>& shared) : square(shared) {
    register_module("square", square.ptr());
  }
  at::Tensor forward(const at::Tensor& x) { return 3 * square(x) + x; }
  nn::Ptr<nn::Linear> square;
};
struct Shared : nn::Module {
  Shared() {
    square = child<nn::Linear>("square", kDim, kDim);
    inside = child<Inside>("inside", square);
  }
  at::Tensor forward(const at::Tensor& x) {
    return at::gelu(square(at::gelu(inside(at::gelu(square(x)))))).square().mean();
  }
  nn::Ptr<nn::Linear> square;
  nn::Ptr<Inside> inside;
};
TEST_RANKS(GradientPlace, NotAroundABackwardInsideOfOne, 2) {
  const auto world = test::join_world();
  Shared alone;
  nn::materialize(alone, 5);
  for (int rank = 0; rank < world->size(); ++rank) nn::call(alone, input(1, rank)).backward();
  for (const Strategy strategy : {Strategy::full_shard, Strategy::no_shard}) {
    SCOPED_TRACE(shard::name_of(strategy));
    const auto model = std::make_shared<Shared>();
    shard::ShardOptions options;
    options.world = world;
    options.strategy = strategy;
    options.seed = 5;
    options.activation_checkpointing = {"Inside"};
    const auto engine = shard::fully_shard(model, {}, options);
    nn::call(*model, input(1, world->rank())).backward();
    for (const char* name : {"square.weight", "square.bias"})
      EXPECT_TRUE(at::allclose(engine->full_gradient(name),
                               alone.named_parameters()[name].grad() / world->size(), 1e-4, 1e-7))
          << name;
    engine->clear_gradients();
  }
}

// Who sees a gradient may keep it: nothing is written into it later.
TEST_RANKS(GradientPlace, NotWhereSomebodyKeepsTheGradient, 2) {
  const auto world = test::join_world();
  Job job(world, Strategy::no_shard);
  const at::Tensor weight = job.model->first->down->weight;
  at::Tensor seen, then;
  const unsigned hook = weight.register_hook([&](const at::Tensor& gradient) {
    seen = gradient;
    then = gradient.clone();
  });
  job.pass(1);
  weight.remove_hook(hook);
  job.expect(by_autograd(world->size(), {1}));
  ASSERT_TRUE(seen.defined());
  EXPECT_TRUE(at::equal(seen, then)) << "the mean over ranks was written into it";
  job.engine->clear_gradients();
}

// A backward that can be differentiated itself: torch writes nothing into given memory there.
TEST_RANKS(GradientPlace, NotWhereTheBackwardHasAGraphOneRank, 1) {
  Job job(test::join_world(), Strategy::no_shard);
  nn::call(*job.model, input(1, 0)).backward({}, std::nullopt, /*create_graph=*/true);
  job.expect(by_autograd(1, {1}));
}

// A unit whose gradient no product writes.
struct Scale : nn::Module {
  Scale() { weight = parameter("weight", {kDim}, nn::Init::normal(1)); }
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor weight;
};
struct Scales : nn::Module {
  Scales() {
    first = child<Scale>("first");
    second = child<Scale>("second");
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x)).square().mean(); }
  nn::Ptr<Scale> first, second;
};

// Fails in the hook of a gradient that has arrived.
struct Failing final : shard::Observer {
  void on(const shard::Event& event) override {
    if (event.kind != shard::Event::Kind::begin_wait || !event.unit.empty()) return;
    failed = true;
    throw std::runtime_error("where a reduction is waited for");
  }
  bool failed = false;
};

TEST_RANKS(GradientPlace, NothingOfABrokenPassIsLeft, 2) {
  const auto world = test::join_world();
  const auto model = std::make_shared<Scales>();
  shard::ShardOptions options;
  options.world = world;
  const auto engine = shard::fully_shard(model, {.units = {"Scale"}}, options);
  const auto pass = [&](int number) { nn::call(*model, input(number, world->rank())).backward(); };
  const auto gradients = [&] {
    const std::vector<at::Tensor> both{engine->full_gradient("first.weight").clone(),
                                       engine->full_gradient("second.weight").clone()};
    engine->clear_gradients();
    return both;
  };
  pass(2);
  const auto want = gradients();

  Failing failing;
  engine->add_observer(&failing);
  EXPECT_THROW(pass(1), std::runtime_error);
  EXPECT_TRUE(failing.failed);
  engine->remove_observer(&failing);
  EXPECT_FALSE(model->first->weight.grad().defined());
  EXPECT_FALSE(model->second->weight.grad().defined());
  engine->abandon();
  pass(2);
  const auto got = gradients();
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
}

// A graph that is older than the end of the engine.
TEST_RANKS(GradientPlace, EndsWithTheEngineOneRank, 1) {
  Job job(test::join_world(), Strategy::no_shard);
  const at::Tensor weight = job.model->first->down->weight;
  const at::Tensor loss = nn::linear(at::ones({2, kWide}), weight).sum();
  job.engine.reset();
  EXPECT_FALSE(nn::gradient_place(weight));
  loss.backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::full_like(weight, 2)));
}

}  // namespace
}  // namespace floe::gradient_place_test
