// Gradients of halves whose sums go into fp32 buffers as they are (Note [Wide places]), and
// everywhere where somebody else sees the gradient, or adds to it, the ordinary way.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>
#include <map>

#include "floe/nn/layers.h"
#include "floe/nn/products/gradient_place.h"
#include "floe/shard/engine.h"
#include "tests/support/device.h"
#include "tests/support/ranks.h"

namespace floe::wide_place_test {
namespace {

using shard::Strategy;

// ---- who sees a gradient ----

// Asks in its backward about the leaf, and hands on the gradient.
struct Asks : torch::autograd::Function<Asks> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& leaf) {
    context->save_for_backward({leaf});
    return leaf * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    answers.push_back(nn::gets_one_gradient(context->get_saved_variables()[0]));
    return {grads[0]};
  }
  static thread_local std::vector<bool> answers;
};
thread_local std::vector<bool> Asks::answers;

std::vector<bool> asked_in(const at::Tensor& loss, bool create_graph = false) {
  Asks::answers.clear();
  loss.backward({}, /*retain_graph=*/true, create_graph);
  return Asks::answers;
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

TEST(OneGradient, NotWhereSomebodyListens) {
  const at::Tensor leaf = a_leaf();
  const at::Tensor once = Asks::apply(leaf).sum();
  const unsigned hook = leaf.register_hook([](const at::Tensor& gradient) { return 2 * gradient; });
  EXPECT_EQ(asked_in(once), Answers{false});
  leaf.remove_hook(hook);
  leaf.mutable_grad().reset();
  EXPECT_EQ(asked_in(Asks::apply(leaf).square().sum(), /*create_graph=*/true), Answers{false});
}

// ---- in an engine ----

constexpr std::int64_t kIn = 24, kOut = 40, kRows = 64;

// Weights that are used once and twice.
struct Layer : nn::Module {
  Layer() {
    once = child<nn::Linear>("once", kIn, kOut, false);
    twice = child<nn::Linear>("twice", kIn, kIn);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = at::cat({once(x), twice(x) + 2 * twice(2 * x)}, 1);
    return beside ? y + 0 * once->weight.sum() : y;
  }
  nn::Ptr<nn::Linear> once, twice;
  bool beside = false;  // a weight is used beside its layer
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
  Job(const std::shared_ptr<comm::World>& world, Strategy strategy) : rank(world->rank()) {
    shard::ShardOptions options;
    options.world = world;
    options.strategy = strategy;
    options.mixed_precision = {.param = at::kBFloat16, .reduce = at::kFloat};
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

// Copies of tensors of so many elements while it lives, on the threads of autograd too.
class Copies {
 public:
  explicit Copies(std::int64_t numel) {
    wanted = numel, count = 0;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
              if (std::string_view(call.name()) == "aten::copy_" &&
                  call.inputs()[0].toTensor().numel() == wanted)
                ++count;
              return nullptr;
            })
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~Copies() { at::removeCallback(handle_); }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;
  static inline std::atomic<std::int64_t> wanted = 0, count = 0;

 private:
  at::CallbackHandle handle_;
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
        const Copies copies(kOut * kIn);
        loss.backward();
        EXPECT_EQ(Copies::count, rounded ? 1 : 0);
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
TEST_RANKS(WidePlace, OneRank, 1) { in_every_way(test::join_world()); }
TEST_RANKS(WidePlace, TwoRanks, 2) { in_every_way(test::join_world()); }

}  // namespace
}  // namespace floe::wide_place_test
