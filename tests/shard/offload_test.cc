// cpu_offload on the GPU, by the allocator's own counts: slices, their gradients and
// optimizer state take no byte of the device; what is there, between steps and at the peak,
// is what the plan says.
#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "floe/comm/world.h"
#include "floe/core/str.h"
#include "floe/models/transformer.h"
#include "floe/nn/layers.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/engine.h"
#include "floe/shard/plan/plan.h"

namespace floe::offload_test {
namespace {

const at::Device kGpu(at::kCUDA, 0);
// Large beside activations.
const models::TransformerSize kSize{
    .vocab = 512, .dim = 512, .layers = 8, .heads = 8, .context = 32, .adapter = 320};

// What tensors asked for. The blocks that they got may be larger by up to a MiB each,
// because the allocator does not split off so little; how many are depends on the order of
// all that came before.
c10::CachingAllocator::Stat asked_bytes() {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(kGpu.index())
      .requested_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

struct Sample {
  std::int64_t peak = 0, between = 0;  // above what was there before
  double loss = 0;
};

template <class Step>
Sample measure(std::int64_t before, Step&& step) {
  Sample sample;
  for (int i = 0; i < 3; ++i) sample.loss = step();
  sample.between = asked_bytes().current - before;
  c10::cuda::CUDACachingAllocator::resetPeakStats(kGpu.index());
  sample.loss = step();
  sample.peak = asked_bytes().peak - before;
  return sample;
}

class Forget final : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const torch::autograd::Variable& leaf) override { leaf.mutable_grad().reset(); }
};

at::Tensor batch() {
  at::manual_seed(1);
  return at::randint(0, kSize.vocab, {2, kSize.context}, at::kLong).to(kGpu);
}

// What one process holds beyond parameters and finished gradients, at most.
std::int64_t unsharded_activations() {
  const at::Tensor ids = batch();
  auto model = std::make_shared<models::Transformer>(kSize);
  nn::materialize(*model, 0, kGpu);
  nn::set_trainable(*model, {"*.adapter.*"});
  for (const auto& p : model->parameters())
    if (p.requires_grad())
      torch::autograd::impl::set_post_acc_grad_hooks(p, std::make_unique<Forget>());
  const Sample sample = measure(0, [&] {
    const at::Tensor loss = models::next_token_loss(model->forward(ids), ids);
    loss.backward();
    return loss.item<double>();
  });
  return sample.peak - sample.between;
}

struct Measured {
  Sample sample;
  shard::HeldBytes held;
  std::int64_t largest_slice = 0;
  std::int64_t pools_between = 0, pools_peak = 0;
};

Measured run(const std::shared_ptr<comm::World>& world, bool offload) {
  const at::Tensor ids = batch();
  const std::int64_t before = asked_bytes().current;
  auto model = std::make_shared<models::Transformer>(kSize);
  shard::ShardOptions options;
  options.world = world;
  options.cpu_offload = offload;
  options.trainable = {{"*.adapter.*"}};
  auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
  optim::AdamW optimizer(*engine, {});
  Measured measured;
  measured.sample = measure(before, [&] {
    const at::Tensor loss = models::next_token_loss(nn::call(*model, ids), ids);
    loss.backward();
    engine->agree();
    optimizer.step(1e-3);
    engine->clear_gradients();
    return loss.item<double>();
  });
  measured.held = engine->plan().held();
  for (const auto& group : engine->plan().groups)
    if (group.active)
      measured.largest_slice = std::max(measured.largest_slice, group.slice_bytes());
  const shard::MemoryInUse used = engine->memory();
  measured.pools_between = used.pool_held + used.gradient_pool_held;
  measured.pools_peak = used.pool_peak + used.gradient_pool_peak;
  return measured;
}

constexpr std::int64_t kScalars = 256 * 1024;  // step counters, cuBLAS aside

// Rank 0 of so many whose collectives are copies on the device: Gloo's own would take memory there.
void counts_of_the_allocator(int ranks) {
  const auto world = comm::World::fake(0, ranks, kGpu);
  // cuBLAS takes its workspace once.
  at::mm(at::ones({64, 64}, at::TensorOptions().device(kGpu)),
         at::ones({64, 64}, at::TensorOptions().device(kGpu)));
  const std::int64_t activations = unsharded_activations();
  const Measured here = run(world, false), away = run(world, true);
  const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::printf(
      "W=%d, MiB: slices and state %.2f; between steps %.2f, offloaded %.2f (pools %.2f); peak "
      "%.2f, "
      "offloaded %.2f; activations %.2f; plan: pool %.2f, gradient buffers %.2f\n",
      ranks, mib(here.held.between_steps()), mib(here.sample.between), mib(away.sample.between),
      mib(away.pools_between), mib(here.sample.peak), mib(away.sample.peak), mib(activations),
      mib(away.held.pool), mib(away.held.gradient_buffers));

  EXPECT_NEAR(away.sample.loss, here.sample.loss, 1e-4 * here.sample.loss);
  // Between steps: nothing but the buffers that the pools keep, and those are the plan's.
  EXPECT_LE(away.sample.between, away.pools_between + kScalars);
  EXPECT_LE(away.pools_between, away.held.pool + away.held.gradient_buffers);
  EXPECT_GE(here.sample.between - here.pools_between, here.held.between_steps());
  EXPECT_LE(here.sample.between - here.pools_between, here.held.between_steps() + kScalars);
  // At the peak: gathered parameters, whole gradients, the slice of one that was just reduced, and
  // what the computation itself needs.
  const std::int64_t bound =
      away.held.pool + away.held.gradient_buffers + away.largest_slice + activations;
  EXPECT_LE(static_cast<double>(away.sample.peak), 1.05 * static_cast<double>(bound));
  EXPECT_LE(away.pools_peak, away.held.pool + away.held.gradient_buffers);
  // A slice's gradient and state never were there, nor was the slice.
  EXPECT_LE(away.sample.peak,
            here.sample.peak - here.held.between_steps() + away.held.pool + kScalars);
}
TEST(Offload, CountsOfTheAllocatorOnOneRank) { counts_of_the_allocator(1); }
TEST(Offload, CountsOfTheAllocatorOfOneOfTwo) { counts_of_the_allocator(2); }
TEST(Offload, CountsOfTheAllocatorOfOneOfFour) { counts_of_the_allocator(4); }

// Groups of one size take turns with the same buffers, and a copy of one to the host takes many
// times as long as the product that fills it again.
constexpr std::int64_t kWide = 4096;
struct Wide : nn::Module {
  Wide() {
    for (int i = 0; i < 6; ++i)
      layers.push_back(child<nn::Linear>(str("layer", i), kWide, kWide, true));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (const auto& layer : layers) y = layer(y);
    return y.square().mean();
  }
  std::vector<nn::Ptr<nn::Linear>> layers;
};

std::map<std::string, at::Tensor> gradients_of(int ranks, bool offload) {
  const auto model = std::make_shared<Wide>();
  shard::ShardOptions options;
  options.world = comm::World::fake(0, ranks, kGpu);
  options.strategy = shard::Strategy::no_shard;
  options.cpu_offload = offload;
  const auto engine = shard::fully_shard(model, {.units = {"Linear"}}, options);
  at::manual_seed(1);
  const at::Tensor x = at::randn({16, kWide}).to(kGpu);
  for (int step = 0; step < 3; ++step) {  // the first one waits for memory that is page-locked
    engine->clear_gradients();
    nn::call(*model, x).backward();
  }
  std::map<std::string, at::Tensor> gradients;
  for (const auto& parameter : nn::named_parameters(*model))
    gradients[parameter.name] = engine->full_gradient(parameter.name);
  return gradients;
}

TEST(Offload, ABufferIsFilledAgainWhenItsCopyIsOver) {
  for (const int ranks : {1, 2}) {  // of two the buffer is reduced before it leaves
    const auto here = gradients_of(ranks, false), away = gradients_of(ranks, true);
    ASSERT_EQ(away.size(), here.size());
    for (const auto& [name, gradient] : here)
      EXPECT_LE((away.at(name) - gradient).norm().item<double>(),
                1e-4 * gradient.norm().item<double>())
          << name << " on one of " << ranks;
  }
}

}  // namespace
}  // namespace floe::offload_test
