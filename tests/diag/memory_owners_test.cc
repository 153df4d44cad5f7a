// Whose memory it is before and after a switch: the engine and its owners against the plan.
#include "floe/observe/diagnostics/memory_owners.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/models/transformer.h"
#include "floe/nn/activations/host_store.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/optim/optimizers/sgd.h"
#include "floe/shard/plan/plan.h"
#include "tests/support/ranks.h"

namespace floe::diagnostics::memory_owners_test {
namespace {

using shard::Rest;

// An optimizer whose state stays where it is, whatever its set does.
class Stubborn final : public optim::Optimizer {
 public:
  explicit Stubborn(shard::Engine& engine, std::size_t set = 0)
      : Optimizer(engine, set, {}, {"history"}, /*counts=*/false) {}
  std::string kind() const override { return "Stubborn"; }
  std::vector<optim::ParameterGroup> parameter_groups() const override { return {}; }
  void deactivate(std::size_t, std::size_t) override {}

 protected:
  void update(double) override {}
};

// A decoder of two layers, each a set of its own, between frozen embeddings.
struct TwoSets {
  TwoSets(Rest rest, bool bf16, shard::ShardOptions options = {}) {
    device_memory(at::kCPU);
    model = std::make_shared<models::Transformer>(
        models::TransformerSize{.vocab = 64, .dim = 64, .layers = 2, .heads = 4, .context = 16});
    if (!options.world) options.world = test::join_world();
    options.sets = {{"a", {"layers.0.*"}, rest}, {"b", {"layers.1.*"}, rest}};
    if (bf16) options.mixed_precision = {.param = at::kBFloat16, .reduce = at::kFloat};
    engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
    for (const std::size_t set : {0, 1})
      adamw.push_back(std::make_unique<optim::AdamW>(*engine, optim::AdamWOptions{}, set));
    ema = std::make_unique<optim::Ema>(*engine, 0.9);
    for (auto& optimizer : adamw) optimizers.push_back(optimizer.get());
  }

  MemoryOwners memory() const { return memory_owners(*engine, optimizers, ema.get()); }
  MemoryOwners expected(const MemoryOwners& before) const {
    return expected_owners(before, *engine, optimizers, ema.get());
  }
  void step() {
    const at::Tensor ids = at::randint(0, 64, {2, 16}, at::kLong);
    models::next_token_loss(nn::call(*model, ids), ids).backward();
    engine->agree();
    adamw[engine->active_set()]->step(1e-3);
    ema->update();
    engine->clear_gradients();
  }

  std::shared_ptr<models::Transformer> model;
  std::shared_ptr<shard::Engine> engine;
  std::vector<std::unique_ptr<optim::AdamW>> adamw;
  std::unique_ptr<optim::Ema> ema;
  std::vector<optim::Optimizer*> optimizers;
};

std::int64_t on_device(const MemoryOwners& memory, const std::string& key) {
  const Owner* owner = memory.find(key);
  return owner ? owner->device_bytes : -1;
}
std::int64_t in_store(const MemoryOwners& memory, const std::string& key) {
  const Owner* owner = memory.find(key);
  return owner ? owner->host_bytes : -1;
}

void owners_hold_what_the_plan_says(Rest rest, bool bf16, const shard::ShardOptions& options) {
  SCOPED_TRACE(str(name_of(rest), bf16 ? " bf16 " : " fp32 ", name_of(options.strategy)));
  TwoSets run(rest, bf16, options);
  const std::int64_t masters = run.engine->plan().held().trainable_slices;  // of either set
  run.step();
  for (const std::size_t next : {1, 0, 1}) {
    const MemoryOwners before = run.memory();
    run.engine->activate(next);
    const MemoryOwners after = run.memory(), expected = run.expected(before);
    EXPECT_EQ(surplus(after, expected), std::vector<std::string>{});

    ASSERT_EQ(after.owners.size(), expected.owners.size());
    for (std::size_t i = 0; i < after.owners.size(); ++i) {
      const Owner &owner = after.owners[i], &planned = expected.owners[i];
      EXPECT_EQ(owner.key, planned.key);
      if (owner.key != "rest") {
        EXPECT_EQ(owner.device_bytes, planned.device_bytes) << owner.key;
      }
      // Masters that are dropped stand for those of the files until the set has trained.
      if (owner.key != "parameters.resting" || rest != Rest::drop) {
        EXPECT_EQ(owner.host_bytes, planned.host_bytes) << owner.key;
      }
    }
    EXPECT_EQ(after.device_bytes(), device_memory(at::kCPU).current_bytes)
        << "the rest is what nobody else owns";
    EXPECT_EQ(after.host_bytes(), nn::stored_bytes()) << "nobody else is in the store";

    const std::string active = next == 0 ? "a" : "b", resting = next == 0 ? "b" : "a";
    EXPECT_EQ(on_device(after, "parameters.trainable"), masters);
    EXPECT_EQ(on_device(after, "optimizer_state." + active), 2 * masters);
    EXPECT_EQ(on_device(after, "optimizer_state." + resting), rest == Rest::keep ? 2 * masters : 0);
    EXPECT_EQ(in_store(after, "optimizer_state." + resting),
              rest == Rest::offload ? 2 * masters : 0);
    EXPECT_EQ(on_device(after, "parameters.resting"),
              bf16 && rest != Rest::keep ? masters / 2 : masters);
    EXPECT_EQ(on_device(after, "averages"), rest == Rest::keep ? 2 * masters : masters);
    EXPECT_EQ(on_device(after, "gather_pool"), 0);
    run.step();
  }
}
void for_every_rest() {
  shard::ShardOptions options;
  options.world = test::join_world();
  for (const Rest rest : {Rest::keep, Rest::offload, Rest::drop})
    for (const bool bf16 : {false, true})
      for (const auto strategy : {shard::Strategy::full_shard, shard::Strategy::no_shard}) {
        options.strategy = strategy;
        owners_hold_what_the_plan_says(rest, bf16, options);
      }
}
TEST_RANKS(MemoryOwners, HoldWhatThePlanSaysOnOneRank, 1) { for_every_rest(); }
TEST_RANKS(MemoryOwners, HoldWhatThePlanSaysOnTwoRanks, 2) { for_every_rest(); }

TEST_RANKS(MemoryOwners, WhatSomebodyKeepsIsTheRest, 1) {
  TwoSets run(Rest::offload, true);
  run.step();
  const MemoryOwners before = run.memory();
  run.engine->activate(1);
  const at::Tensor small = at::empty({kMiB / 2}, at::kByte);
  EXPECT_TRUE(surplus(run.memory(), run.expected(before)).empty()) << "too little to matter";
  const at::Tensor kept = at::empty({4 * kMiB}, at::kByte);
  const auto sentences = surplus(run.memory(), run.expected(before));
  ASSERT_EQ(sentences.size(), 1U);
  const std::int64_t rest = on_device(before, "rest");
  EXPECT_EQ(sentences[0], str("the rest (activations, batches, tensors that somebody keeps) holds ",
                              format_bytes(rest + kMiB / 2 + 4 * kMiB), " on the device, expected ",
                              format_bytes(rest)));
}

TEST_RANKS(MemoryOwners, WhoeverDoesNotLeaveIsNamed, 2) {
  TwoSets run(Rest::drop, false);
  Stubborn stubborn(*run.engine);
  run.optimizers[0] = &stubborn;
  run.step();
  const MemoryOwners before = run.memory();
  run.engine->activate(1);
  const auto sentences = surplus(run.memory(), run.expected(before));
  ASSERT_EQ(sentences.size(), 1U);
  EXPECT_EQ(sentences[0],
            str("the optimizer state of set 'a' holds ", format_bytes(stubborn.state_bytes()),
                " on the device, expected 0 B"));
}

// What saves copy to is nobody's rest.
TEST_RANKS(MemoryOwners, TheMemoryOfSavesHasAnOwner, 2) {
  TwoSets run(Rest::drop, false);
  run.step();
  const MemoryOwners without = run.memory();
  const at::Tensor copies = at::empty({3 * kMiB}, at::kByte);
  const MemoryOwners with =
      memory_owners(*run.engine, run.optimizers, run.ema.get(), copies.numel());
  EXPECT_EQ(on_device(without, "saves"), 0);
  EXPECT_EQ(on_device(with, "saves"), 3 * kMiB);
  EXPECT_EQ(on_device(with, "rest"), on_device(without, "rest"));
  EXPECT_EQ(surplus(with, run.expected(with)), std::vector<std::string>{});
  EXPECT_EQ(
      surplus(with, run.expected(without)),
      std::vector<std::string>{"the copies of saves hold 3.00 MiB on the device, expected 0 B"});
}

// On the CPU device and host are one memory: offloaded slices stay where they are.
TEST_RANKS(MemoryOwners, OffloadedSlicesRestWhereTheyAre, 2) {
  shard::ShardOptions options;
  options.cpu_offload = true;
  TwoSets run(Rest::offload, true, options);
  run.step();
  const MemoryOwners before = run.memory();
  run.engine->activate(1);
  EXPECT_EQ(surplus(run.memory(), run.expected(before)), std::vector<std::string>{});
  EXPECT_EQ(run.memory().host_bytes(), 0);
}

TEST_RANKS(MemoryOwners, OneSetHasNoName, 1) {
  device_memory(at::kCPU);
  auto model = std::make_shared<models::Transformer>(
      models::TransformerSize{.vocab = 8, .dim = 8, .layers = 1, .heads = 2, .context = 4});
  shard::ShardOptions options;
  options.world = test::join_world();
  const auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
  optim::Sgd sgd(*engine, {.momentum = 0.9});
  const MemoryOwners memory = memory_owners(*engine, {&sgd}, nullptr);
  EXPECT_EQ(on_device(memory, "optimizer_state"), engine->plan().held().trainable_slices);
  EXPECT_EQ(on_device(memory, "averages"), -1) << "there are none";
}

MemoryOwners made(std::vector<Owner> owners) { return {std::move(owners)}; }

TEST(MemoryOwners, LinesAndJsonLeaveOutWhatIsZero) {
  const MemoryOwners before = made({{"optimizer_state.a", "the optimizer state of set 'a'", kMiB},
                                    {"gradients", "the gradients"},
                                    {"rest", "the rest", 512}});
  const MemoryOwners after = made({{"optimizer_state.a", "the optimizer state of set 'a'", 0, kMiB},
                                   {"gradients", "the gradients"},
                                   {"rest", "the rest", 512}});
  EXPECT_EQ(switch_lines(before, after),
            (std::vector<std::string>{
                "owner                                               before     after",
                "  the optimizer state of set 'a'                  1.00 MiB       0 B",
                "  the rest                                           512 B     512 B",
                "  together on the device                          1.00 MiB     512 B",
                "  the optimizer state of set 'a', in host memory       0 B  1.00 MiB"}));
  EXPECT_EQ(owners_json(after).dump(), R"({"rest":512,"host.optimizer_state.a":1048576})");
}

}  // namespace
}  // namespace floe::diagnostics::memory_owners_test
