// A checkpointed module that keeps products computes none of them twice, and gives the same bits.
#include "floe/nn/activations/kept_products.h"

#include <ATen/ATen.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_native.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <memory>

#include "floe/core/error.h"
#include "floe/nn/activations/host_store.h"
#include "floe/nn/autocast.h"
#include "floe/nn/call.h"
#include "floe/nn/layers.h"
#include "floe/observe/diagnostics/memory_counter.h"

namespace floe::nn::kept_products_test {
namespace {

// ---- how many products the CPU really computes ----

struct Counts {
  int matrix = 0, attention = 0;
  bool operator==(const Counts&) const = default;
};
Counts counts;

at::Tensor counted_mm(const at::Tensor& a, const at::Tensor& b) {
  counts.matrix += 1;
  return at::cpu::mm(a, b);
}
at::Tensor counted_bmm(const at::Tensor& a, const at::Tensor& b) {
  counts.matrix += 1;
  return at::cpu::bmm(a, b);
}
at::Tensor counted_addmm(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                         const at::Scalar& beta, const at::Scalar& alpha) {
  counts.matrix += 1;
  return at::cpu::addmm(c, a, b, beta, alpha);
}
std::tuple<at::Tensor, at::Tensor> counted_attention(const at::Tensor& q, const at::Tensor& k,
                                                     const at::Tensor& v, double dropout,
                                                     bool causal,
                                                     const std::optional<at::Tensor>& mask,
                                                     std::optional<double> scale) {
  counts.attention += 1;
  return at::native::_scaled_dot_product_flash_attention_cpu(q, k, v, dropout, causal, mask, scale);
}

// Below everything: in place of the kernels themselves.
TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("mm", &counted_mm);
  library.impl("bmm", &counted_bmm);
  library.impl("addmm", &counted_addmm);
  library.impl("_scaled_dot_product_flash_attention_for_cpu", &counted_attention);
}

// ---- a block with all kinds of parts ----

struct Attention : Module {
  explicit Attention(std::int64_t dim) {
    qkv = child<Linear>("qkv", dim, 3 * dim);
    out = child<Linear>("out", dim, dim, false);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto parts =
        qkv(x).view({x.size(0), x.size(1), 3, 2, -1}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, dropout, true);
    return out(mixed.transpose(1, 2).reshape(x.sizes()));
  }
  double dropout = 0;
  Ptr<Linear> qkv, out;
};

struct Block : Module {
  explicit Block(std::int64_t dim = 16, double dropout = 0) {
    norm1 = child<LayerNorm>("norm1", dim);
    attention = child<Attention>("attention", dim);
    norm2 = child<LayerNorm>("norm2", dim);
    up = child<Linear>("up", dim, 4 * dim);
    down = child<Linear>("down", 4 * dim, dim);
    drop = child<Dropout>("drop", dropout);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x + drop(attention(norm1(x)));
    return y + drop(leaves(*this, down(at::gelu(up(norm2(y))))));
  }
  Ptr<LayerNorm> norm1, norm2;
  Ptr<Attention> attention;
  Ptr<Linear> up, down;
  Ptr<Dropout> drop;
};

template <class M>
struct Stack : Module {
  template <class... Args>
  explicit Stack(int depth, Args... args) {
    for (int i = 0; i < depth; ++i) blocks.push_back(child<M>(std::to_string(i), args...));
    materialize(*this, 5);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : blocks) x = block(x);
    return x;
  }
  std::vector<Ptr<M>> blocks;
};

enum class Way { nothing, inputs, products, inputs_in_host, products_in_host };
constexpr Way kWays[] = {Way::inputs, Way::products, Way::inputs_in_host, Way::products_in_host};

void set(BoundarySlot& slot, Way way, std::int64_t in_host_from = 0) {
  slot.checkpointed = way != Way::nothing;
  slot.kept.products = way == Way::products || way == Way::products_in_host;
  slot.kept.in_host = way == Way::inputs_in_host || way == Way::products_in_host;
  slot.kept.in_host_from = in_host_from;
}

struct Result {
  std::vector<at::Tensor> tensors;  // output, gradients, and the random number that comes next
  Counts forward, backward;
};

template <class Model>
Result run(Model& model, const at::Tensor& start, bool input_trains = true) {
  Result result;
  const at::Tensor x = start.detach().clone().requires_grad_(input_trains);
  at::manual_seed(2);
  counts = {};
  const at::Tensor y = call(model, input_trains ? x * 1 : x);
  result.forward = counts;
  counts = {};
  y.to(at::kFloat).square().sum().backward();
  result.backward = counts;
  result.tensors = {y.detach(), x.grad(), at::rand({3})};
  for (auto& p : model.parameters()) {
    result.tensors.push_back(p.grad().defined() ? p.grad().clone() : at::Tensor());
    p.mutable_grad().reset();
  }
  return result;
}

void expect_same(const Result& a, const Result& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    ASSERT_EQ(a.tensors[i].defined(), b.tensors[i].defined()) << "tensor " << i;
    EXPECT_TRUE(!a.tensors[i].defined() || a.tensors[i].equal(b.tensors[i])) << "tensor " << i;
  }
}

at::Tensor input(const std::vector<std::int64_t>& shape = {3, 7, 16}) {
  at::manual_seed(1);
  return at::randn(shape);
}

TEST(KeptProducts, SameBitsAndNoProductTwice) {
  for (const double dropout : {0.0, 0.3}) {
    Stack<Block> model(3, 16, dropout);
    const auto expected = run(model, input());
    EXPECT_EQ(expected.forward, (Counts{3 * 4, 3}));
    for (const Way way : kWays) {
      SCOPED_TRACE(static_cast<int>(way));
      for (auto& block : model.blocks) set(*block, way);
      const auto found = run(model, input());
      expect_same(found, expected);
      EXPECT_EQ(found.forward, expected.forward);
      const bool again = way == Way::inputs || way == Way::inputs_in_host;
      EXPECT_EQ(found.backward.matrix, expected.backward.matrix + (again ? 3 * 4 : 0));
      EXPECT_EQ(found.backward.attention, again ? 3 : 0);
    }
  }
}

TEST(KeptProducts, OnlyParametersOrOnlyTheInputTrain) {
  Stack<Block> model(2, 16, 0.1);
  for (const bool input_trains : {true, false}) {
    for (auto& p : model.parameters()) p.requires_grad_(!input_trains);
    for (auto& block : model.blocks) set(*block, Way::nothing);
    const auto expected = run(model, input(), input_trains);
    for (const Way way : kWays) {
      for (auto& block : model.blocks) set(*block, way);
      expect_same(run(model, input(), input_trains), expected);
    }
  }
}

TEST(KeptProducts, CheckpointsInsideCheckpoints) {
  Stack<Block> model(2, 16, 0.2);
  const auto expected = run(model, input());
  for (const Way outer : kWays)
    for (const Way inner : kWays) {
      SCOPED_TRACE(std::to_string(static_cast<int>(outer)) + " around " +
                   std::to_string(static_cast<int>(inner)));
      set(model, outer);
      for (auto& block : model.blocks) {
        set(*block, inner);
        set(*block->attention, inner);
      }
      const auto found = run(model, input());
      expect_same(found, expected);
      if (outer == Way::products && inner == Way::products) {
        EXPECT_EQ(found.backward.matrix, expected.backward.matrix);
        EXPECT_EQ(found.backward.attention, 0);
      }
    }
}

TEST(KeptProducts, UnderAutocast) {
  Stack<Block> model(2);
  Result expected;
  for (const Way way : {Way::nothing, Way::inputs, Way::products, Way::products_in_host}) {
    for (auto& block : model.blocks) set(*block, way);
    const AutocastScope autocast(at::kCPU, at::kBFloat16);
    const auto found = run(model, input());
    if (way == Way::nothing) {
      expected = found;
      continue;
    }
    expect_same(found, expected);
    if (way == Way::products) {
      EXPECT_EQ(found.backward, expected.backward);
    }
  }
}

// The wide half of an adapter is cheaper computed than kept.
TEST(KeptProducts, AdaptersKeepTheirNarrowHalf) {
  Stack<Block> model(2);
  for (auto& block : model.blocks)
    for (auto* layer : {&*block->attention->qkv, &*block->down, &*block->up})
      layer->adapt({.rank = 2, .dropout = 0.2});
  materialize(model, 6);
  {
    const at::AutoGradMode grad_off(false);
    at::manual_seed(3);
    for (auto& parameter : model.named_parameters())
      if (parameter.key().ends_with("lora_B.weight")) parameter.value().normal_();
  }
  const auto expected = run(model, input());
  for (const Way way : kWays) {
    for (auto& block : model.blocks) set(*block, way);
    const auto found = run(model, input());
    expect_same(found, expected);
    if (way == Way::products) {  // of each block qkv, up and down go from 2 to 48, 64 and 16
      EXPECT_EQ(found.backward.matrix, expected.backward.matrix + 2 * 3);
    }
  }
}

// A foreign module is no different: its operators are torch's.
struct ForeignImpl : torch::nn::Module {
  ForeignImpl() {
    torch::manual_seed(4);
    conv = register_module("conv", torch::nn::Conv1d(torch::nn::Conv1dOptions(7, 7, 3).padding(1)));
    linear = register_module("linear", torch::nn::Linear(16, 16));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = linear(at::tanh(conv(x)));
    return y.relu_() * x;
  }
  torch::nn::Conv1d conv{nullptr};
  torch::nn::Linear linear{nullptr};
};

TEST(KeptProducts, ForeignModules) {
  Hooked<ForeignImpl> model;
  const auto both = [&](Way way) {
    set(model, way);
    const at::Tensor x = input().requires_grad_();
    counts = {};
    const at::Tensor y = model.forward(x);
    counts = {};
    y.square().sum().backward();
    Result result{{y.detach(), x.grad()}, {}, counts};
    for (auto& p : model.parameters()) {
      result.tensors.push_back(p.grad().clone());
      p.mutable_grad().reset();
    }
    return result;
  };
  const auto expected = both(Way::nothing);
  for (const Way way : kWays) {
    const auto found = both(way);
    expect_same(found, expected);
    // relu_ writes into what the layer gave: that product is computed again, not taken as
    // it is now.
    EXPECT_EQ(found.backward.matrix, expected.backward.matrix + 1);
  }
}

TEST(KeptProducts, AttentionWithDropoutIsComputedAgain) {
  Stack<Block> model(2, 16, 0.2);
  for (auto& block : model.blocks) block->attention->dropout = 0.3;
  const auto expected = run(model, input());
  for (const Way way : kWays) {
    for (auto& block : model.blocks) set(*block, way);
    expect_same(run(model, input()), expected);
  }
}

TEST(KeptProducts, ARetainedGraphMayBeDifferentiatedAgain) {
  Stack<Block> model(2, 16, 0.2);
  std::vector<std::vector<at::Tensor>> results;
  for (const Way way : {Way::nothing, Way::products, Way::products_in_host}) {
    for (auto& block : model.blocks) set(*block, way);
    const at::Tensor x = input().requires_grad_();
    at::manual_seed(2);
    const at::Tensor loss = call(model, x).square().sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    results.push_back({x.grad()});
    for (auto& p : model.parameters()) {
      results.back().push_back(p.grad().clone());
      p.mutable_grad().reset();
    }
    for (std::size_t i = 0; i < results[0].size(); ++i)
      EXPECT_TRUE(results.back()[i].equal(results[0][i])) << i;
  }
}

// Whoever chooses a way by whether there are gradients asks this too.
TEST(KeptProducts, BothRunsKnowThatThereAreTwo) {
  struct Asking : Module {
    Asking() { a = child<Linear>("a", 16, 16); }
    at::Tensor forward(const at::Tensor& x) {
      answers.push_back(runs_twice());
      return a(x);
    }
    Ptr<Linear> a;
    std::vector<bool> answers;
  };
  Stack<Asking> model(1);
  for (const auto& [way, answers] : {std::pair{Way::products, std::vector{true, true}},
                                     {Way::inputs, {false, false}},
                                     {Way::nothing, {false}}}) {
    set(*model.blocks[0], way);
    run(model, input({5, 16}));
    EXPECT_EQ(std::exchange(model.blocks[0]->answers, {}), answers);
  }
  EXPECT_FALSE(runs_twice());
}

// A rerun that takes another way than the first run computes what it was not given.
TEST(KeptProducts, AnotherWayInTheRerun) {
  struct Turning : Module {
    Turning() {
      a = child<Linear>("a", 16, 8);
      b = child<Linear>("b", 16, 8);
      c = child<Linear>("c", 8, 16);
    }
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor left = a(x);
      const at::Tensor right = at::GradMode::is_enabled() ? at::matmul(b->weight, x.t()).t() : b(x);
      return c(left * right) * x;
    }
    Ptr<Linear> a, b, c;
  };
  Stack<Turning> model(1);
  const at::AutoGradMode grad_off(false);
  model.blocks[0]->b->bias.zero_();
  const at::AutoGradMode grad_on(true);
  const auto expected = run(model, input({5, 16}));
  set(*model.blocks[0], Way::products);
  const auto found = run(model, input({5, 16}));
  for (std::size_t i = 0; i < expected.tensors.size(); ++i)
    if (expected.tensors[i].defined()) {
      EXPECT_TRUE(at::allclose(found.tensors[i], expected.tensors[i], 1e-5, 1e-5)) << i;
    }
}

TEST(KeptProducts, AKernelThatTheDispatcherDoesNotKnow) {
  struct Own : torch::autograd::Function<Own> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                              int* runs) {
      const auto both = keep_results("test::own", {x}, [&] {
        *runs += 1;
        return std::vector{x.exp(), x.sin()};
      });
      context->save_for_backward({both[0], both[1]});
      return both[0] * both[1];
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list grads) {
      const auto saved = context->get_saved_variables();
      return {grads[0] * saved[0] * saved[1], {}};
    }
  };
  struct Calling : Module {
    at::Tensor forward(const at::Tensor& x) { return Own::apply(x, &runs) + x; }
    int runs = 0;
  };
  Stack<Calling> model(1);
  const auto expected = run(model, input());
  for (const Way way : {Way::inputs, Way::products, Way::products_in_host}) {
    model.blocks[0]->runs = 0;
    set(*model.blocks[0], way);
    expect_same(run(model, input()), expected);
    EXPECT_EQ(model.blocks[0]->runs, way == Way::inputs ? 2 : 1);
  }
}

TEST(KeptProducts, AStepInPlaceIsKeptWithItsProduct) {
  struct Step : torch::autograd::Function<Step> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                              int* runs) {
      if (!step_is_kept(x)) {
        *runs += 1;
        x.mul_(3);
      }
      context->mark_dirty({x});
      return x;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list grads) {
      return {grads[0] * 3, {}};
    }
  };
  struct Calling : Module {
    Calling() {
      a = child<Linear>("a", 16, 16);
      b = child<Linear>("b", 16, 16);
    }
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor projected = a(x);
      const at::Tensor turned = Step::apply(projected, &runs);
      keep_step(projected);
      return b(turned * turned) * x;
    }
    Ptr<Linear> a, b;
    int runs = 0;
  };
  Stack<Calling> model(2);
  const auto expected = run(model, input({5, 16}));
  for (const Way way : {Way::inputs, Way::products, Way::products_in_host}) {
    for (auto& block : model.blocks) block->runs = 0, set(*block, way);
    const auto found = run(model, input({5, 16}));
    expect_same(found, expected);
    EXPECT_EQ(found.backward.matrix, expected.backward.matrix + (way == Way::inputs ? 4 : 0));
    EXPECT_EQ(model.blocks[0]->runs, way == Way::inputs ? 2 : 1);
  }
}

// ---- memory ----

struct Held {
  std::int64_t after_forward = 0, peak = 0, in_store = 0;
};

// Forgets a gradient as soon as autograd has finished it.
class Forget final : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const torch::autograd::Variable& leaf) override { leaf.mutable_grad().reset(); }
};

// Beyond what is there before the forward.
Held held(Stack<Block>& model, const at::Tensor& x, Way way, std::int64_t in_host_from) {
  auto& memory = diagnostics::MemoryCounter::install();
  for (auto& block : model.blocks) set(*block, way, in_host_from);
  Held result;
  const std::int64_t before = memory.current_bytes();
  memory.reset_peak();
  at::Tensor loss = call(model, x).square().sum();
  result.after_forward = memory.current_bytes() - before;
  result.in_store = stored_bytes();
  loss.backward();
  result.peak = memory.peak_bytes() - before;
  EXPECT_EQ(stored_bytes(), 0) << "the store is empty when backward is over";
  return result;
}

// Of one block: x [n, d] is 1 unit. Kept are the input, and of the products qkv (3), attention (1),
// its output (1) and up (4); down leaves the block and is read by nobody.
TEST(KeptActivations, MemoryIsWhatIsKept) {
  constexpr std::int64_t kDepth = 8, kDim = 64, kTokens = 2048;
  Stack<Block> model(kDepth, kDim);
  for (const auto& p : model.parameters())
    torch::autograd::impl::set_post_acc_grad_hooks(p, std::make_unique<Forget>());
  const at::Tensor x = input({8, kTokens / 8, kDim});
  const std::int64_t unit = kTokens * kDim * 4;
  const std::int64_t slack = unit;  // sums of attention, states of generators, a scalar
  const std::int64_t small = unit;  // bytes from which tensors go to the host
  const Held all = held(model, x, Way::nothing, small);
  const Held inputs = held(model, x, Way::inputs, small);
  const Held products = held(model, x, Way::products, small);
  const Held inputs_away = held(model, x, Way::inputs_in_host, small);
  const Held products_away = held(model, x, Way::products_in_host, small);
  const auto near = [&](std::int64_t found, std::int64_t units, const char* what) {
    EXPECT_GE(found, units * unit - slack) << what << " " << static_cast<double>(found) / unit;
    EXPECT_LE(found, units * unit + slack) << what << " " << static_cast<double>(found) / unit;
  };
  // The first block's input is there before; the last one's output is what the loss keeps.
  near(inputs.after_forward, kDepth, "inputs");
  near(products.after_forward, kDepth + 9 * kDepth, "products");
  near(inputs_away.after_forward, 1, "inputs in host memory");
  near(products_away.after_forward, 1, "products in host memory");
  EXPECT_EQ(inputs.in_store, 0);
  EXPECT_EQ(inputs_away.in_store, kDepth * unit);
  EXPECT_EQ(products_away.in_store, 10 * kDepth * unit);
  EXPECT_GT(all.after_forward, products.after_forward);
  EXPECT_GT(all.peak, products.peak);
  EXPECT_GT(products.peak, inputs.peak);
  EXPECT_GT(inputs.peak, inputs_away.peak);
  EXPECT_GT(products.peak, products_away.peak);
  // In backward one block has all its activations, and what the one before it kept is back already.
  const std::int64_t block = all.after_forward / kDepth, working = 12 * unit;
  EXPECT_LE(inputs.peak, inputs.after_forward + block + working);
  EXPECT_LE(products.peak, products.after_forward + block + working);
  EXPECT_LE(inputs_away.peak, 2 * unit + block + working);
  EXPECT_LE(products_away.peak, 2 * 10 * unit + block + working);
  std::printf(
      "peaks, in inputs of a block: %.1f all, %.1f products, %.1f inputs; in host memory: "
      "%.1f products, %.1f inputs; of one block %.1f\n",
      static_cast<double>(all.peak) / static_cast<double>(unit),
      static_cast<double>(products.peak) / static_cast<double>(unit),
      static_cast<double>(inputs.peak) / static_cast<double>(unit),
      static_cast<double>(products_away.peak) / static_cast<double>(unit),
      static_cast<double>(inputs_away.peak) / static_cast<double>(unit),
      static_cast<double>(block) / static_cast<double>(unit));
}

// What several modules read is one tensor, on the device or in the host.
TEST(KeptActivations, ASharedInputLeavesOnce) {
  struct Reader : Module {
    Reader() { layer = child<Linear>("layer", 16, 16); }
    at::Tensor forward(const at::Tensor& x, const at::Tensor& media) {
      return x + layer(media * x.mean());
    }
    Ptr<Linear> layer;
  };
  Reader a, b;
  materialize(a, 1);
  materialize(b, 2);
  std::vector<std::vector<at::Tensor>> results;
  for (const Way way : {Way::nothing, Way::inputs_in_host}) {
    set(a, way, 100), set(b, way, 100);
    const at::Tensor x = input({2, 16}).requires_grad_(), media = input({2, 16}).requires_grad_();
    {
      const at::Tensor shared = media * 2;
      const at::Tensor y = call(b, call(a, x * 1, shared), shared);
      EXPECT_EQ(stored_bytes(), way == Way::inputs_in_host ? 3 * 2 * 16 * 4 : 0);
      y.square().sum().backward();
    }
    results.push_back({x.grad(), media.grad(), a.layer->weight.grad(), b.layer->weight.grad()});
    a.layer->weight.mutable_grad().reset(), b.layer->weight.mutable_grad().reset();
  }
  for (std::size_t i = 0; i < results[0].size(); ++i)
    EXPECT_TRUE(results[0][i].equal(results[1][i])) << i;
}

TEST(KeptActivations, SmallAndSparselyLaidTensorsStay) {
  KeptTensor small(at::ones({4})), sliced(at::ones({64, 64}).narrow(1, 0, 32));
  small.leave(17);
  sliced.leave(1);
  EXPECT_EQ(stored_bytes(), 0);
  KeptTensor turned(at::arange(12).view({3, 4}).t());
  turned.leave(1);
  EXPECT_EQ(stored_bytes(), 12 * 8);
  const at::Tensor back = turned.get();
  EXPECT_TRUE(back.equal(at::arange(12).view({3, 4}).t()));
  EXPECT_EQ(back.strides(), (at::IntArrayRef{1, 4})) << "the same layout";
}

TEST(KeptActivations, AnInputChangedAfterItLeftIsNoticed) {
  Block block;
  materialize(block, 3);
  set(block, Way::inputs_in_host);
  const at::Tensor x = input() * 1;
  const at::Tensor y = call(block, x);
  x.add_(1);
  EXPECT_THROW(y.sum().backward(), Error);
}

}  // namespace
}  // namespace floe::nn::kept_products_test
