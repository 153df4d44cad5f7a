// A transformer of which only adapters train, sharded over the ranks, next to the same training in
// one piece: same losses, and what each rank holds and moves.
//   floe launch -n 2 --exec build/release/bin/partly_frozen_transformer
#include <ATen/ATen.h>

#include <cstdio>
#include <string>

#include "floe/comm/world.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/models/transformer.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/engine.h"

using namespace floe;

namespace {

const models::TransformerSize kSize{
    .vocab = 128, .dim = 384, .layers = 12, .heads = 8, .context = 48, .adapter = 32};
const std::vector<std::string> kTrainable{"*.adapter.*", "norm.*", "head.*"};
constexpr int kSteps = 40;
constexpr int64_t kBatch = 2;

// Sentences of a small grammar: each token follows from the one before, with a little noise.
at::Tensor batch(int step, int rank) {
  auto generator = at::detail::createCPUGenerator(uint64_t{1000} * static_cast<uint64_t>(step) +
                                                  static_cast<uint64_t>(rank));
  at::Tensor ids = at::empty({kBatch, kSize.context}, at::kLong);
  auto id = ids.accessor<int64_t, 2>();
  const at::Tensor noise = at::randint(0, 512, {kBatch, kSize.context}, generator, at::kLong);
  auto n = noise.accessor<int64_t, 2>();
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t t = 0; t < kSize.context; ++t)
      id[b][t] = t == 0 || n[b][t] % 16 == 0 ? n[b][t] % 64 : (id[b][t - 1] * 5 + 3) % 64;
  return ids;
}

struct Outcome {
  double first_loss = 0, last_loss = 0;
  std::int64_t peak = 0;
};

Outcome train(diagnostics::MemoryCounter& memory, const std::shared_ptr<comm::World>& world,
              shard::Strategy strategy, bool show) {
  auto model = std::make_shared<models::Transformer>(kSize);
  shard::ShardOptions options;
  options.world = world;
  options.strategy = strategy;
  options.trainable = kTrainable;
  auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
  optim::AdamW optimizer(*engine, {});
  Outcome outcome;
  for (int step = 1; step <= kSteps; ++step) {
    if (step == 3) memory.reset_peak();
    const at::Tensor ids = batch(step, world->rank()).to(world->device());
    const at::Tensor loss = models::next_token_loss(nn::call(*model, ids), ids);
    loss.backward();
    const auto all = engine->agree(/*locally_finite=*/true, {}, loss);
    optimizer.step(3e-3, optim::clip_factor(all.gradient_norm, 1.0));
    engine->clear_gradients();
    outcome.last_loss = all.sums[0] / world->size();
    if (step == 1) outcome.first_loss = outcome.last_loss;
    if (show && (step == 1 || step % 10 == 0))
      std::printf("  step %2d  loss %.4f  gradient norm %.3f\n", step, outcome.last_loss,
                  all.gradient_norm);
  }
  outcome.peak = memory.peak_bytes();
  if (show) {
    const auto moved = engine->moved();
    std::printf("  peak tensor memory of a rank  %s\n", format_bytes(outcome.peak).c_str());
    std::printf("  gathered / reduced per step   %s / %s\n", format_bytes(moved.gathered).c_str(),
                format_bytes(moved.reduce_scattered + moved.all_reduced).c_str());
  }
  return outcome;
}

void compare(diagnostics::MemoryCounter& memory, const std::shared_ptr<comm::World>& world) {
  const bool show = world->rank() == 0;
  if (show) {
    models::Transformer model(kSize);
    std::int64_t all = 0;
    for (const auto& p : nn::named_parameters(model)) all += p.tensor.numel();
    std::printf(
        "A transformer of %s parameters; only adapters, the last norm and the head train; %d "
        "ranks.\n",
        format_count(all).c_str(), world->size());
    std::printf("Everything on every rank (no_shard):\n");
  }
  const Outcome whole = train(memory, world, shard::Strategy::no_shard, show);
  if (show)
    std::printf("Parameters, gradients and optimizer state sliced over the ranks (full_shard):\n");
  const Outcome sliced = train(memory, world, shard::Strategy::full_shard, show);
  if (show)
    std::printf("The losses agree to %.1e, and a rank needs %.0f%% of the memory.\n",
                std::abs(whole.last_loss - sliced.last_loss),
                100.0 * static_cast<double>(sliced.peak) / static_cast<double>(whole.peak));
  require(sliced.last_loss < 0.8 * sliced.first_loss, "the loss has not fallen: it began at ",
          sliced.first_loss, " and ended at ", sliced.last_loss);
}

}  // namespace

int main() {
  auto& memory = diagnostics::MemoryCounter::install();  // before the first tensor
  auto world = comm::World::join();
  return comm::guarded(*world, [&] { compare(memory, world); });
}
