// Recomputation gives what keeping everything would have given.
#include "floe/nn/activations/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "floe/core/error.h"
#include "floe/nn/layers.h"
#include "floe/observe/diagnostics/memory_counter.h"

namespace floe::nn::checkpoint_test {
namespace {

struct Block : Module {
  explicit Block(double dropout = 0, std::int64_t width = 32) {
    up = child<Linear>("up", 8, width);
    down = child<Linear>("down", width, 8);
    drop = child<Dropout>("drop", dropout);
    materialize(*this, 11);
  }
  at::Tensor forward(const at::Tensor& x) {
    runs += 1;
    reruns += recomputing() ? 1 : 0;
    const at::Tensor hidden = up(x);
    dtypes.push_back(hidden.scalar_type());
    return x + drop(down(drop(at::gelu(hidden))));
  }
  std::vector<at::Tensor> gradients() {
    std::vector<at::Tensor> all;
    for (auto& p : parameters()) {
      all.push_back(p.grad().defined() ? p.grad().clone() : at::Tensor());
      p.mutable_grad().reset();
    }
    return all;
  }
  Ptr<Linear> up, down;
  Ptr<Dropout> drop;
  int runs = 0, reruns = 0;
  std::vector<at::ScalarType> dtypes;
};

at::Tensor input(bool needs_grad = true) {
  at::manual_seed(1);
  return at::rand({5, 8}).requires_grad_(needs_grad);
}

void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << "tensor " << i;
    EXPECT_TRUE(!a[i].defined() || a[i].equal(b[i])) << "tensor " << i;
  }
}

// Output, input gradient, parameter gradients, and the random number that comes next.
std::vector<at::Tensor> everything(Block& block, bool checkpointed, bool input_needs_grad = true) {
  block.checkpointed = checkpointed;
  const at::Tensor x = input(input_needs_grad);
  at::manual_seed(2);
  const at::Tensor y = call(block, x * 1);
  const at::Tensor after_forward = at::rand({3});
  y.square().sum().backward();
  std::vector<at::Tensor> all{y.detach(), x.grad(), after_forward, at::rand({3})};
  for (auto& gradient : block.gradients()) all.push_back(gradient);
  return all;
}

TEST(Checkpoint, SameGradientsTwiceTheForward) {
  Block block;
  const auto expected = everything(block, false);
  EXPECT_EQ(block.runs, 1);
  expect_same(everything(block, true), expected);
  EXPECT_EQ(block.runs, 3);
  EXPECT_EQ(block.reruns, 1);
  EXPECT_FALSE(recomputing());
}

TEST(Checkpoint, DropoutRepeatsAndDisturbsNobody) {
  Block block(0.4);
  const auto expected = everything(block, false);
  expect_same(everything(block, true), expected);
  // The mask is one that really drops.
  EXPECT_FALSE(everything(block, true)[0].equal(Block(0.1).forward(input())));
}

TEST(Checkpoint, OnlyParametersNeedGradients) {
  Block block(0.2);
  const auto expected = everything(block, false, false);
  EXPECT_FALSE(expected[1].defined());
  EXPECT_TRUE(expected[4].defined());
  expect_same(everything(block, true, false), expected);
}

TEST(Checkpoint, OnlyTheInputNeedsAGradient) {
  Block block(0.2);
  for (auto& p : block.parameters()) p.requires_grad_(false);
  const auto expected = everything(block, false);
  EXPECT_TRUE(expected[1].defined());
  expect_same(everything(block, true), expected);
}

TEST(Checkpoint, WithoutGradModeItRunsOnce) {
  Block block;
  block.checkpointed = true;
  const at::AutoGradMode grad_off(false);
  EXPECT_FALSE(call(block, input()).requires_grad());
  EXPECT_EQ(block.runs, 1);
}

TEST(Checkpoint, KeepsTheOutputOnly) {
  auto& memory = diagnostics::MemoryCounter::install();
  Block block(0, 4096);
  const at::Tensor x = input();
  const auto kept = [&](bool checkpointed) {
    block.checkpointed = checkpointed;
    const auto before = memory.current_bytes();
    const at::Tensor y = call(block, x);
    return memory.current_bytes() - before - static_cast<std::int64_t>(y.nbytes());
  };
  EXPECT_GT(kept(false), 5 * 4096 * 4);
  EXPECT_LT(kept(true), 8192) << "besides the output: the state of a random generator";
}

// ---- autocast ----

class AutocastScope {
 public:
  AutocastScope() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

TEST(Checkpoint, AutocastRepeats) {
  Block block;
  std::vector<std::vector<at::Tensor>> results;
  for (const bool checkpointed : {false, true}) {
    block.checkpointed = checkpointed;
    const at::Tensor x = input();
    at::Tensor y;
    {
      const AutocastScope autocast;
      y = call(block, x);
    }
    y.to(at::kFloat).square().sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    results.push_back({y.detach(), x.grad()});
    for (auto& gradient : block.gradients()) results.back().push_back(gradient);
  }
  EXPECT_EQ(block.dtypes, (std::vector<at::ScalarType>(3, at::kBFloat16)));
  expect_same(results[1], results[0]);
}

// And the other way round: autocast on in backward, off in forward.
TEST(Checkpoint, NoAutocastRepeatsToo) {
  Block block;
  block.checkpointed = true;
  const at::Tensor y = call(block, input());
  const AutocastScope autocast;
  y.square().sum().backward();
  EXPECT_EQ(block.dtypes, (std::vector<at::ScalarType>(2, at::kFloat)));
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

// Autocast caches cast weights. One that was cast without autograd must not be found by anybody.
TEST(Checkpoint, AutocastsCacheLosesNoGradient) {
  std::vector<std::vector<at::Tensor>> results;
  for (const bool checkpointed : {false, true}) {
    Block block;
    const at::Tensor x = input();
    const AutocastScope autocast;
    block.checkpointed = checkpointed;
    const at::Tensor y = call(block, x);
    block.checkpointed = false;
    const at::Tensor z = call(block, y);
    z.to(at::kFloat).square().sum().backward();  // still inside autocast
    results.push_back({z.detach(), x.grad()});
    for (auto& gradient : block.gradients()) results.back().push_back(gradient);
  }
  ASSERT_EQ(results[0].size(), results[1].size());
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    ASSERT_TRUE(results[1][i].defined()) << "tensor " << i;
    // Two uses of one cast weight add up in bf16, two casts in fp32.
    EXPECT_TRUE(at::allclose(results[1][i], results[0][i], 0.02, 0.02)) << "tensor " << i;
  }
}

// ---- wrong use ----

TEST(Checkpoint, DifferentiatingTwiceIsAnError) {
  Block block;
  block.checkpointed = true;
  const at::Tensor y = call(block, input()).sum();
  y.backward();
  try {
    y.backward();
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("differentiated twice"), std::string::npos) << e.what();
  }
}

TEST(Checkpoint, ARetainedGraphMayBeDifferentiatedAgain) {
  Block block(0.3);
  std::vector<std::vector<at::Tensor>> results;
  for (const bool checkpointed : {false, true}) {
    block.checkpointed = checkpointed;
    const at::Tensor x = input();
    const at::Tensor y = call(block, x).sum();
    y.backward({}, /*retain_graph=*/true);
    y.backward();
    results.push_back({x.grad()});
    for (auto& gradient : block.gradients()) results.back().push_back(gradient);
  }
  expect_same(results[1], results[0]);
}

TEST(Checkpoint, SecondDerivativesAreRefused) {
  Block block;
  block.checkpointed = true;
  const at::Tensor x = input();
  const at::Tensor y = call(block, x).square().sum();
  EXPECT_THROW(torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true), Error);
}

TEST(Checkpoint, AnInputChangedMeanwhileIsNoticed) {
  Block block;
  block.checkpointed = true;
  const at::Tensor x = input() * 1;
  const at::Tensor y = call(block, x);
  x.detach().add_(1);
  EXPECT_ANY_THROW(y.sum().backward());
}

// A rerun that fails leaves the thread as it was.
TEST(Checkpoint, AFailedRerunRestoresEverything) {
  struct Failing : Module {
    at::Tensor forward(const at::Tensor& x) {
      require(!recomputing(), "in the rerun");
      return at::dropout(x, 0.5, true);
    }
  } module;
  module.checkpointed = true;
  at::manual_seed(3);
  const at::Tensor y = call(module, input());
  const at::Tensor next = at::rand({2});
  at::manual_seed(3);
  const at::Tensor again = call(module, input());
  EXPECT_THROW(again.sum().backward(), Error);
  EXPECT_FALSE(recomputing());
  EXPECT_TRUE(at::rand({2}).equal(next));
}

// ---- arguments and results of any shape ----

struct Many : Module {
  Many() {
    layer = child<Linear>("layer", 8, 8);
    materialize(*this, 4);
  }
  using Result = std::tuple<at::Tensor, at::Tensor, std::vector<at::Tensor>, int>;
  Result forward(const std::vector<at::Tensor>& list, const at::Tensor& ids,
                 std::optional<at::Tensor> bias, double scale, const std::string& mode) {
    at::Tensor x = layer(list[0] * list[1]) * scale;
    if (bias) x = x + *bias;
    if (mode == "double") x = x * 2;
    const at::Tensor picked = x.index_select(0, ids);
    return {x, picked.argmax(1), {picked.sin(), picked.detach() + 1, list[0]}, 7};
  }
  Ptr<Linear> layer;
};

TEST(Checkpoint, ArgumentsAndResultsOfAnyShape) {
  Many many;
  for (const bool with_bias : {false, true})
    for (const int used : {0, 1, 2, 3}) {  // which outputs the loss uses
      std::vector<std::vector<at::Tensor>> results;
      for (const bool checkpointed : {false, true}) {
        many.checkpointed = checkpointed;
        const at::Tensor a = input(), b = at::rand({5, 8}).requires_grad_(), bias = input();
        const at::Tensor ids = at::arange(3).flip(0);
        auto [x, top, list, seven] =
            call(many, std::vector{a * 1, b * 1}, ids,
                 with_bias ? std::optional<at::Tensor>(bias * 1) : std::nullopt, 1.5,
                 std::string("double"));
        EXPECT_EQ(seven, 7);
        EXPECT_EQ(top.scalar_type(), at::kLong);
        EXPECT_FALSE(top.requires_grad());
        at::Tensor loss = at::zeros({});
        if (used == 0 || used == 3) loss = loss + x.square().sum();
        if (used == 1 || used == 3) loss = loss + list[0].sum();
        if (used == 2 || used == 3) loss = loss + (list[2] * 3).sum();
        loss.backward();
        results.push_back({x.detach(), top, list[0].detach(), list[1].detach(), a.grad()});
        if (used != 2) results.back().push_back(b.grad());
        if (used != 2) results.back().push_back(with_bias ? bias.grad() : at::Tensor());
        for (auto& p : many.parameters()) {
          if (used != 2) results.back().push_back(p.grad().clone());
          p.mutable_grad().reset();
        }
      }
      SCOPED_TRACE(std::to_string(used) + (with_bias ? " with bias" : ""));
      expect_same(results[1], results[0]);
    }
}

TEST(Checkpoint, InsideACheckpoint) {
  struct Outer : Module {
    Outer() {
      first = child<Block>("first", 0.3);
      second = child<Block>("second", 0.3);
    }
    at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
    Ptr<Block> first, second;
  } outer;
  int told = 0;
  add_recompute_listener(&told, [&] { told += recomputing() ? 100 : 1; });
  std::vector<std::vector<at::Tensor>> results;
  for (const bool checkpointed : {false, true}) {
    outer.checkpointed = outer.first->checkpointed = outer.second->checkpointed = checkpointed;
    const at::Tensor x = input();
    at::manual_seed(9);
    call(outer, x).square().sum().backward();
    results.push_back({x.grad()});
    for (auto& gradient : outer.first->gradients()) results.back().push_back(gradient);
    for (auto& gradient : outer.second->gradients()) results.back().push_back(gradient);
  }
  expect_same(results[1], results[0]);
  EXPECT_EQ(told, 1) << "of the outermost one, before it begins";
  remove_recompute_listener(&told);
  outer.checkpointed = true;
  call(outer, input()).sum().backward();
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace floe::nn::checkpoint_test
