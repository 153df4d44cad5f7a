// Gradients of halves whose sums go into fp32 buffers as they are (Note [Wide places]), and
// everywhere where somebody else sees the gradient, or adds to it, the ordinary way.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <map>

#include "floe/nn/layers.h"
#include "floe/nn/products/gradient_place.h"
#include "floe/shard/engine.h"
#include "tests/support/device.h"
#include "tests/support/ranks.h"
#include "tests/support/torch_calls.h"

namespace floe::wide_place_test {
namespace {

using shard::Strategy;

// ---- who sees a gradient ----

std::vector<bool> answers;
long held = 0;  // references to the leaf's accumulator

// x * leaf; asks in its backward about the leaf.
struct Uses : torch::autograd::Function<Uses> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& leaf) {
    context->save_for_backward({x, leaf});
    return x * leaf;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    answers.push_back(nn::gets_one_gradient(saved[1], held));
    return {grads[0] * saved[1], grads[0] * saved[0]};
  }
};

// The same of nothing but the leaf.
struct Asks : torch::autograd::Function<Asks> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& leaf) {
    context->save_for_backward({leaf});
    return leaf * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    answers.push_back(nn::gets_one_gradient(context->get_saved_variables()[0], held));
    return {grads[0]};
  }
};

std::vector<bool> asked_in(const at::Tensor& loss) {
  answers.clear();
  loss.backward(at::ones_like(loss), /*retain_graph=*/true);
  return answers;
}
at::Tensor a_leaf() { return at::ones({3}).requires_grad_(); }
using Answers = std::vector<bool>;

TEST(OneGradient, OfALeafThatIsUsedOnce) {
  const at::Tensor leaf = a_leaf(), other = a_leaf();
  EXPECT_EQ(asked_in((Asks::apply(leaf) * other + other).sum()), Answers{true});
}

TEST(OneGradient, NotOfOneThatIsUsedAgain) {
  const at::Tensor leaf = a_leaf();
  EXPECT_EQ(asked_in((Asks::apply(leaf) + leaf.square()).sum()), Answers{false});
  const at::Tensor twice = a_leaf();
  EXPECT_EQ(asked_in((Asks::apply(twice) * Asks::apply(twice)).sum()), (Answers{false, false}));
}

TEST(OneGradient, OfEachBackwardAnew) {
  const at::Tensor leaf = a_leaf();
  const at::Tensor once = Asks::apply(leaf).sum();
  EXPECT_EQ(asked_in(once), Answers{true});
  EXPECT_EQ(asked_in(once), Answers{false}) << "it has a gradient already";
  leaf.mutable_grad().reset();
  EXPECT_EQ(asked_in(once + leaf.sum()), Answers{false});
  leaf.mutable_grad().reset();
  EXPECT_EQ(asked_in(once), Answers{true});
}

// Autograd does not tell of the node that a backward begins with.
TEST(OneGradient, TheBeginningOfABackwardCounts) {
  const at::Tensor leaf = a_leaf(), other = a_leaf();
  EXPECT_EQ(asked_in(Asks::apply(leaf)), Answers{true});
  EXPECT_EQ(asked_in(Uses::apply(Asks::apply(other) * 2, a_leaf())), (Answers{true, true}));
  const at::Tensor twice = a_leaf();
  EXPECT_EQ(asked_in(Uses::apply(Uses::apply(a_leaf(), twice), twice)), (Answers{false, false}));
  const at::Tensor beside = a_leaf();
  EXPECT_EQ(asked_in(Asks::apply(beside) * beside), Answers{false}) << "it begins without asking";
}

TEST(OneGradient, NotWhileAnotherGraphOfItIsAlive) {
  const at::Tensor leaf = a_leaf();
  at::Tensor before = (leaf * 2).sum();
  EXPECT_EQ(asked_in(Asks::apply(leaf).sum()), Answers{false});
  leaf.mutable_grad().reset();
  before.reset();
  EXPECT_EQ(asked_in(Asks::apply(leaf).sum()), Answers{true});
}

TEST(OneGradient, NotWhereSomebodyListens) {
  const at::Tensor leaf = a_leaf();
  at::Tensor once = Asks::apply(leaf).sum();
  const unsigned hook = leaf.register_hook([](const at::Tensor& gradient) { return 2 * gradient; });
  EXPECT_EQ(asked_in(once), Answers{false});
  leaf.remove_hook(hook);
  leaf.mutable_grad().reset();
  once = at::Tensor();

  {
    const torch::autograd::DetectAnomalyGuard anomalies(/*check_nan=*/false);
    EXPECT_EQ(asked_in(Asks::apply(a_leaf()).sum()), Answers{false}) << "values are looked at";
  }
  struct Seeing final : torch::autograd::FunctionPostHook {
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& inputs,
                                              const torch::autograd::variable_list&) override {
      return inputs;
    }
  };
  const at::Tensor another = a_leaf();
  at::Tensor product = Asks::apply(another);
  product.grad_fn()->add_post_hook(std::make_unique<Seeing>());
  EXPECT_EQ(asked_in(product.sum()), Answers{false});
}

// ---- in an engine ----

constexpr std::int64_t kIn = 24, kOut = 40, kRows = 64;

// Asks about a weight inside of a unit.
struct AskingLayer : nn::Module {
  AskingLayer() { weight = parameter("weight", {kIn}, nn::Init::normal(1)); }
  at::Tensor forward(const at::Tensor& x) { return Uses::apply(x, weight); }
  at::Tensor weight;
};
struct AskingModel : nn::Module {
  AskingModel() { layer = child<AskingLayer>("layer"); }
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  nn::Ptr<AskingLayer> layer;
};

// What the engine holds of a weight is known: else no place would ever be given.
TEST_RANKS(OneGradient, InAnEngine, 2) {
  const auto world = test::join_world();
  held = 1;
  for (const Strategy strategy :
       {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
    for (const bool checkpointed : {false, true}) {
      shard::ShardOptions options;
      options.world = world;
      options.strategy = strategy;
      if (checkpointed) options.activation_checkpointing = {"AskingLayer"};
      const auto model = std::make_shared<AskingModel>();
      const auto engine = shard::fully_shard(model, {.units = {"AskingLayer"}}, options);
      for (int step = 0; step < 3; ++step) {
        const at::Tensor x = at::ones({2, kIn}).to(test::device()).requires_grad_();
        EXPECT_EQ(asked_in(nn::call(*model, x).sum()), Answers{true})
            << shard::name_of(strategy) << (checkpointed ? ", checkpointed" : "");
        engine->clear_gradients();
      }
      // The model's output is where the backward begins.
      EXPECT_EQ(asked_in(nn::call(*model, at::ones({2, kIn}).to(test::device()))), Answers{true});
      engine->clear_gradients();
    }
}

// Weights that are used once and twice.
struct Layer : nn::Module {
  Layer() {
    once = child<nn::Linear>("once", kIn, kOut, false);
    twice = child<nn::Linear>("twice", kIn, kIn);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (ends_with == 1) return once(x);
    if (ends_with == 2) return twice(twice(x));
    const at::Tensor y = at::cat({once(x), twice(x) + 2 * twice(2 * x)}, 1);
    return beside ? y + 0 * once->weight.sum() : y;
  }
  nn::Ptr<nn::Linear> once, twice;
  bool beside = false;  // a weight is used beside its layer
  int ends_with = 0;    // products that are the layer's last: once, or twice the same weight
};
struct Model : nn::Module {
  Model() { layer = child<Layer>("layer"); }
  // A gradient of each output of its own, in bf16.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& slopes) {
    return (layer(x) * slopes).sum(at::kFloat);
  }
  nn::Ptr<Layer> layer;
};

struct Batch {
  at::Tensor x, slopes;
  Batch(int pass, int rank) {
    at::manual_seed(static_cast<std::uint64_t>(31 * pass + rank));
    const auto random = [](std::int64_t columns) {
      return at::randn({kRows, columns}).to(test::device(), at::kBFloat16);
    };
    x = random(kIn), slopes = random(kOut + kIn);
  }
};

using Gradients = std::map<std::string, at::Tensor>;

// Exactly: sums over passes of means over ranks of what the bf16 numbers make.
Gradients exact(int ranks, const std::vector<int>& passes) {
  Gradients all;
  const auto add = [&](const char* name, const at::Tensor& gradient) {
    auto& sum = all[name];
    sum = sum.defined() ? sum + gradient / ranks : gradient / ranks;
  };
  for (const int pass : passes)
    for (int rank = 0; rank < ranks; ++rank) {
      const Batch batch(pass, rank);
      const at::Tensor x = batch.x.to(at::kDouble), slopes = batch.slopes.to(at::kDouble);
      add("layer.once.weight", slopes.narrow(1, 0, kOut).t().mm(x));
      add("layer.twice.weight", 5 * slopes.narrow(1, kOut, kIn).t().mm(x));
      add("layer.twice.bias", 3 * slopes.narrow(1, kOut, kIn).sum(0));
    }
  return all;
}

struct Job {
  Job(const std::shared_ptr<comm::World>& world, Strategy strategy, bool checkpointed = false)
      : rank(world->rank()) {
    shard::ShardOptions options;
    options.world = world;
    options.strategy = strategy;
    options.mixed_precision = {.param = at::kBFloat16, .reduce = at::kFloat};
    if (checkpointed) options.activation_checkpointing = {"Layer"};
    engine = shard::fully_shard(model, {.units = {"Layer"}}, options);
  }
  at::Tensor loss(int pass) {
    const Batch batch(pass, rank);
    return nn::call(*model, batch.x, batch.slopes);
  }
  double error(const Gradients& want, const char* name) {
    const at::Tensor got = engine->full_gradient(name).to(at::kDouble), &right = want.at(name);
    return ((got - right).norm() / right.norm()).item<double>();
  }
  // Halves have 8 bits of mantissa: rounded once to them, a gradient is about 1.7e-3 off.
  void expect(const Gradients& want, bool rounded) {
    const double once = error(want, "layer.once.weight");
    if (rounded)
      EXPECT_LT(once, 5e-3);
    else
      EXPECT_LT(once, 1e-5);
    EXPECT_LT(error(want, "layer.twice.weight"), 1e-2);
    EXPECT_LT(error(want, "layer.twice.bias"), 1e-2);
  }

  std::shared_ptr<Model> model = std::make_shared<Model>();
  int rank;
  std::shared_ptr<shard::Engine> engine;
};

void in_every_way(const std::shared_ptr<comm::World>& world) {
  const bool rounded = test::device().is_cpu();  // which has no such products
  for (const Strategy strategy :
       {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard}) {
    SCOPED_TRACE(shard::name_of(strategy));
    Job job(world, strategy);
    for (int step = 0; step < 2; ++step) {
      const at::Tensor loss = job.loss(step);
      {
        const test::Copies copies;
        loss.backward();
        EXPECT_EQ(copies.of(kOut * kIn), rounded ? 1 : 0);
      }
      job.expect(exact(world->size(), {step}), rounded);
      job.engine->clear_gradients();
    }

    // The second pass adds, rounded, to what the first has left, where that is not reduced yet.
    job.engine->set_gradient_sync(false);
    job.loss(3).backward();
    job.engine->set_gradient_sync(true);
    job.loss(4).backward();
    job.expect(exact(world->size(), {3, 4}), /*rounded=*/true);
    job.engine->clear_gradients();

    job.model->layer->beside = true;
    job.loss(5).backward();
    job.model->layer->beside = false;
    job.expect(exact(world->size(), {5}), /*rounded=*/true);
    job.engine->clear_gradients();

    // Somebody who sees it sees what it is.
    const at::Tensor weight = job.model->layer->once->weight;
    at::Tensor seen;
    const unsigned hook =
        weight.register_hook([&](const at::Tensor& gradient) { seen = gradient.clone(); });
    job.loss(6).backward();
    weight.remove_hook(hook);
    job.expect(exact(world->size(), {6}), /*rounded=*/true);
    const Batch batch(6, job.rank);
    const at::Tensor own =
        batch.slopes.narrow(1, 0, kOut).t().to(at::kDouble).mm(batch.x.to(at::kDouble));
    ASSERT_TRUE(seen.defined());
    EXPECT_LT(((seen - own).norm() / own.norm()).item<double>(), 5e-3);
    job.engine->clear_gradients();
  }
}
// A backward of its own, as that of a checkpointed unit, begins with a product.
void at_the_end(const std::shared_ptr<comm::World>& world) {
  const auto wide = [](const at::Tensor& x) { return x.to(at::kDouble); };
  for (const bool checkpointed : {false, true}) {
    SCOPED_TRACE(checkpointed);
    Job job(world, Strategy::full_shard, checkpointed);
    const auto backward = [&](int ends_with, std::int64_t begin, std::int64_t columns) {
      const Batch batch(7, job.rank);
      job.model->layer->ends_with = ends_with;
      nn::call(*job.model, batch.x, batch.slopes.narrow(1, begin, columns)).backward();
    };
    // Over the ranks' batches.
    const auto mean = [&](auto&& gradient) {
      at::Tensor sum = gradient(Batch(7, 0));
      for (int rank = 1; rank < world->size(); ++rank) sum = sum + gradient(Batch(7, rank));
      return sum / world->size();
    };
    backward(1, 0, kOut);
    const auto once = mean([&](const Batch& batch) {
      return wide(batch.slopes.narrow(1, 0, kOut)).t().mm(wide(batch.x));
    });
    EXPECT_LT(job.error({{"layer.once.weight", once}}, "layer.once.weight"),
              test::device().is_cpu() ? 5e-3 : 1e-5);
    job.engine->clear_gradients();

    const auto gathered = [&](const char* name) {
      return wide(job.engine->full_parameter(name).to(at::kBFloat16));
    };
    const at::Tensor weight = gathered("layer.twice.weight"), bias = gathered("layer.twice.bias");
    backward(2, kOut, kIn);
    const auto twice = mean([&](const Batch& batch) {
      const at::Tensor x = wide(batch.x), slopes = wide(batch.slopes.narrow(1, kOut, kIn));
      return slopes.t().mm(x.mm(weight.t()) + bias) + slopes.mm(weight).t().mm(x);
    });
    EXPECT_LT(job.error({{"layer.twice.weight", twice}}, "layer.twice.weight"), 2e-2);
    job.engine->clear_gradients();
  }
}
TEST_RANKS(WidePlace, AtTheEndOfAUnit, 2) { at_the_end(test::join_world()); }

// A stream that the engine was not made on: nothing there waits for what reads a place.
TEST_RANKS(WidePlace, NotOnAnotherStreamOneRank, 1) {
  if (test::device().is_cpu()) return;
  Job job(test::join_world(), Strategy::full_shard);
  const c10::impl::VirtualGuardImpl streams(test::device().type());
  const c10::StreamGuard guard(streams.getStreamFromGlobalPool(test::device()));
  const at::Tensor loss = job.loss(1);
  {
    const test::Copies copies;
    loss.backward();
    EXPECT_EQ(copies.of(kOut * kIn), 1);
  }
  job.expect(exact(1, {1}), /*rounded=*/true);
}

TEST_RANKS(WidePlace, OneRank, 1) { in_every_way(test::join_world()); }
TEST_RANKS(WidePlace, TwoRanks, 2) { in_every_way(test::join_world()); }

}  // namespace
}  // namespace floe::wide_place_test
