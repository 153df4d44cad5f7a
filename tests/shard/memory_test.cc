// Invariant 3: the peak of tensor memory in a step is what the formula says plus the activations
// that the unsharded run holds.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "floe/comm/world.h"
#include "floe/models/transformer.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/engine.h"
#include "floe/shard/plan/plan.h"
#include "tests/support/ranks.h"

namespace floe::memory_test {
namespace {

// 12 layers; adapters, about a tenth of all parameters, train.
const models::TransformerSize kSize{
    .vocab = 512, .dim = 256, .layers = 12, .heads = 8, .context = 32, .adapter = 160};

struct Sample {
  std::int64_t peak = 0, between = 0;
};

// Peak and rest of a steady step.
template <class Step>
Sample measure(diagnostics::MemoryCounter& memory, Step&& step) {
  for (int i = 0; i < 3; ++i) step();
  Sample sample;
  sample.between = memory.current_bytes();
  memory.reset_peak();
  step();
  sample.peak = memory.peak_bytes();
  return sample;
}

// Forgets a gradient as soon as autograd has finished it.
class Forget final : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const torch::autograd::Variable& leaf) override { leaf.mutable_grad().reset(); }
};

// What one process holds beyond parameters and finished gradients, at most: activations,
// temporaries.
std::int64_t unsharded_activations(diagnostics::MemoryCounter& memory, const at::Tensor& ids) {
  auto model = std::make_shared<models::Transformer>(kSize);
  nn::materialize(*model, 0);
  nn::set_trainable(*model, {"*.adapter.*"});
  for (const auto& p : model->parameters())
    if (p.requires_grad())
      torch::autograd::impl::set_post_acc_grad_hooks(p, std::make_unique<Forget>());
  const auto sample =
      measure(memory, [&] { models::next_token_loss(model->forward(ids), ids).backward(); });
  return sample.peak - sample.between;
}

void peak_of_a_step_is_within_the_formula() {
  auto& memory = diagnostics::MemoryCounter::install();
  const at::Tensor ids = at::randint(0, kSize.vocab, {2, kSize.context}, at::kLong);
  const std::int64_t activations = unsharded_activations(memory, ids);
  const std::int64_t before = memory.current_bytes();

  auto world = test::join_world();
  auto model = std::make_shared<models::Transformer>(kSize);
  shard::ShardOptions options;
  options.world = world;
  options.trainable = {{"*.adapter.*"}};
  auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
  optim::AdamW optimizer(*engine, {});
  const auto sample = measure(memory, [&] {
    models::next_token_loss(nn::call(*model, ids), ids).backward();
    engine->agree();
    optimizer.step(1e-3);
    engine->clear_gradients();
  });
  const auto& plan = engine->plan();
  const auto held = plan.held();
  std::int64_t all = 0, trainable = 0, largest_gradient = 0;
  std::vector<std::int64_t> gathered;
  for (const auto& p : plan.parameters) (p.trainable ? trainable : all) += p.numel;
  all += trainable;
  EXPECT_NEAR(static_cast<double>(trainable) / static_cast<double>(all), 0.1, 0.02) << "90% frozen";
  for (const auto& unit : plan.units) {
    std::int64_t bytes = 0;
    for (const std::size_t g : unit.groups) bytes += plan.groups[g].gathered_bytes();
    gathered.push_back(bytes);
  }
  for (const auto& group : plan.groups)
    largest_gradient = std::max(largest_gradient, group.gradient_bytes());
  std::sort(gathered.rbegin(), gathered.rend());
  const std::int64_t working = largest_gradient;  // of one reduce-scatter
  const std::int64_t bound = held.between_steps() + held.gradient_slices + gathered[0] +
                             gathered[1] + largest_gradient + working + activations;
  EXPECT_LE(static_cast<double>(sample.peak - before), 1.05 * static_cast<double>(bound))
      << "shards " << held.between_steps() << ", gradients " << held.gradient_slices
      << ", gathered " << gathered[0] + gathered[1] << ", activations " << activations;
  // Between steps a rank holds its slices and their state, and what the pool keeps for
  // the next step.
  const std::int64_t scalars = 64 * 1024;  // step counters, small leftovers
  const auto used = engine->memory();
  EXPECT_LE(used.pool_held + used.gradient_pool_held, held.pool + held.gradient_buffers);
  EXPECT_LE(sample.between - before,
            held.between_steps() + used.pool_held + used.gradient_pool_held + scalars);
  EXPECT_GE(sample.between - before, held.between_steps());
  std::printf(
      "peak %.2f MiB of at most %.2f MiB; between steps %.2f; pool %.2f, gradient pool %.2f\n",
      static_cast<double>(sample.peak - before) / (1 << 20), static_cast<double>(bound) / (1 << 20),
      static_cast<double>(sample.between - before) / (1 << 20),
      static_cast<double>(used.pool_peak) / (1 << 20),
      static_cast<double>(used.gradient_pool_peak) / (1 << 20));
}
TEST_RANKS(Memory, PeakOfAStepIsWithinTheFormula, 4) { peak_of_a_step_is_within_the_formula(); }
TEST_RANKS(Memory, PeakOfAStepIsWithinTheFormulaOnOneRank, 1) {
  peak_of_a_step_is_within_the_formula();
}

// Peaks of steps whose layers are checkpointed, beyond what is held between steps and the
// gradients.
TEST_RANKS(Memory, KeptActivationsAreAsManyAsTheyShouldBe, 2) {
  auto& memory = diagnostics::MemoryCounter::install();
  auto world = test::join_world();
  const auto peak = [&](std::int64_t layers, bool checkpointed, bool products, bool in_host) {
    const models::TransformerSize size{
        .vocab = 64, .dim = 64, .layers = layers, .heads = 4, .context = 256};
    const at::Tensor ids = at::randint(0, size.vocab, {8, size.context}, at::kLong);
    auto model = std::make_shared<models::Transformer>(size);
    shard::ShardOptions options;
    options.world = world;
    if (checkpointed) options.activation_checkpointing = {"DecoderLayer"};
    options.kept_activations = {.products = products, .in_host = in_host, .in_host_from = 1 << 18};
    auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
    const auto sample = measure(memory, [&] {
      models::next_token_loss(nn::call(*model, ids), ids).backward();
      engine->agree();
      engine->clear_gradients();
    });
    return sample.peak - sample.between - engine->plan().held().gradient_slices;
  };
  const std::int64_t input = 8 * 256 * 64 * 4;  // of one layer
  const std::int64_t everything = peak(8, false, false, false);
  const std::int64_t inputs = peak(8, true, false, false), products = peak(8, true, true, false);
  const std::int64_t inputs_away = peak(8, true, false, true);
  const std::int64_t products_away = peak(8, true, true, true);
  // All of a layer's activations are 16 inputs, its products 9.
  EXPECT_GT(everything - products, 8 * 5 * input);
  EXPECT_GT(products - inputs, 7 * 8 * input);
  EXPECT_GT(inputs - inputs_away, 4 * input);
  EXPECT_GT(products - products_away, 5 * 10 * input);
  // In host memory they grow with the depth; the device does not notice it.
  EXPECT_LE(peak(16, true, false, true), inputs_away + input);
  EXPECT_LE(peak(16, true, true, true), products_away + input);
}

TEST(Memory, BuildingAModelTakesNone) {
  auto& memory = diagnostics::MemoryCounter::install();
  const std::int64_t before = memory.current_bytes();
  models::Transformer huge(
      {.vocab = 128'000, .dim = 8192, .layers = 80, .heads = 64, .context = 8192});
  EXPECT_EQ(memory.current_bytes(), before);
  shard::ShardOptions options;
  const auto plan = shard::make_plan(huge, {.units = {"DecoderLayer"}}, options, 1024);
  EXPECT_EQ(memory.current_bytes(), before);
  EXPECT_GT(plan.held().trainable_slices, 0);
}

// A full copy of the model never exists on any rank.
TEST(Memory, ShardingNeverHoldsTheWholeModel) {
  auto& memory = diagnostics::MemoryCounter::install();
  auto model = std::make_shared<models::Transformer>(kSize);
  memory.reset_peak();
  const std::int64_t before = memory.current_bytes();
  shard::ShardOptions options;
  options.world = comm::World::fake(2, 8);
  auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
  const std::int64_t slices = engine->plan().held().trainable_slices;
  EXPECT_LE(memory.peak_bytes() - before, slices + (1 << 16));
}

}  // namespace
}  // namespace floe::memory_test
