// Sharded training equals unsharded training: every strategy, world size and freezing pattern
// against the reference of invariant 1.
#include <ATen/ATen.h>

#include <cstdlib>

#include "floe/comm/world.h"
#include "floe/shard/engine.h"
#include "floe/shard/plan/plan.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

namespace floe::parity_test {
namespace {

using shard::Residency;
using shard::Strategy;

struct Way {  // of sharding
  std::string name;
  Strategy strategy = Strategy::full_shard;
  int hybrid_shard_size = 1;
  Residency residency = Residency::sharded;
  bool cpu_offload = false;
  int prefetch = 1;
  int needs_multiple_of = 1;
  // Sums run in another order than the reference's, so gradients agree to rounding instead of to
  // the bit: |difference| ≤ 1e-6.
  bool reorders = false;
};

struct Scenario {
  std::string name;
  test::Recipe recipe;
  std::vector<std::string> checkpointing;
  bool sync_every_micro_step = true;
  std::vector<std::string> units{"DecoderLayer"};
  bool mixed = false;
  nn::KeptActivations kept;  // of what is checkpointed
};

std::vector<Way> ways(int world) {
  std::vector<Way> all{
      {"full_shard"},
      {"full_shard without prefetch", Strategy::full_shard, 1, Residency::sharded, false, 0},
      {"full_shard prefetch 3", Strategy::full_shard, 1, Residency::sharded, false, 3},
      {"shard_grad_op", Strategy::shard_grad_op},
      {"no_shard", Strategy::no_shard},
      {"resident", Strategy::full_shard, 1, Residency::resident},
      {"auto", Strategy::full_shard, 1, Residency::automatic},
      {"cpu_offload", Strategy::full_shard, 1, Residency::sharded, true},
      {"cpu_offload no_shard", Strategy::no_shard, 1, Residency::sharded, true},
  };
  if (world % 2 == 0) {
    all.push_back({"hybrid 1", Strategy::hybrid, 1, Residency::sharded, false, 1, 2, true});
    all.push_back({"hybrid 2", Strategy::hybrid, 2, Residency::sharded, false, 1, 2, true});
  }
  return all;
}

std::vector<Scenario> scenarios() {
  test::Recipe base;
  base.size = {.vocab = 61, .dim = 24, .layers = 3, .heads = 3, .context = 12, .adapter = 5};
  base.adamw.decay = {0.1, {"*weight"}};

  std::vector<Scenario> all;
  all.push_back({"all trainable", base});
  Scenario one{"one unit trainable", base};
  one.recipe.trainable = {"layers.1.*"};
  all.push_back(one);
  Scenario mixed{"mixed inside units", base};
  mixed.recipe.trainable = {"*.adapter.*", "norm.*", "layers.2.norm1.*"};
  all.push_back(mixed);
  Scenario tied{"tied", base};
  tied.recipe.size.tied = true;
  all.push_back(tied);
  Scenario tied_frozen{"tied and frozen", mixed.recipe};
  tied_frozen.name = "tied and frozen";
  tied_frozen.recipe.size.tied = true;
  all.push_back(tied_frozen);
  Scenario checkpointed{"checkpointed with dropout", mixed.recipe};
  checkpointed.recipe.size.dropout = 0.2;
  checkpointed.checkpointing = {"DecoderLayer"};
  all.push_back(checkpointed);
  const nn::KeptActivations products{.products = true};
  const nn::KeptActivations in_host{.in_host = true, .in_host_from = 0};
  const nn::KeptActivations products_in_host{.products = true, .in_host = true, .in_host_from = 0};
  Scenario kept{"checkpointed, products kept", checkpointed.recipe, {"DecoderLayer"}};
  kept.kept = products;
  all.push_back(kept);
  Scenario away{"checkpointed, inputs in host memory", checkpointed.recipe, {"DecoderLayer"}};
  away.kept = in_host;
  all.push_back(away);
  Scenario both{"checkpointed, all trainable, products in host memory", base, {"DecoderLayer"}};
  both.kept = products_in_host;
  all.push_back(both);
  Scenario inside{"checkpointed inside units", base};
  inside.recipe.size.dropout = 0.2;
  inside.checkpointing = {"Attention"};
  all.push_back(inside);
  Scenario accumulated{"accumulation", base};
  accumulated.recipe.micro_steps = 2;
  all.push_back(accumulated);
  Scenario unsynced{"accumulation without sync", mixed.recipe};
  unsynced.recipe.micro_steps = 3;
  unsynced.sync_every_micro_step = false;
  all.push_back(unsynced);
  Scenario bf16{"mixed precision", mixed.recipe};
  bf16.recipe.param_dtype = at::kBFloat16;
  bf16.mixed = true;
  all.push_back(bf16);
  Scenario bf16_all{"mixed precision, all trainable, checkpointed", base};
  bf16_all.recipe.param_dtype = at::kBFloat16;
  bf16_all.mixed = true;
  bf16_all.checkpointing = {"DecoderLayer"};
  all.push_back(bf16_all);
  Scenario bf16_kept = bf16_all;
  bf16_kept.name = "mixed precision, products of nested units in host memory";
  bf16_kept.units = {"DecoderLayer", "Attention", "Linear"};
  bf16_kept.kept = products_in_host;
  all.push_back(bf16_kept);
  Scenario clipped{"clipped", base};
  clipped.recipe.clip = 0.5;
  all.push_back(clipped);
  Scenario nested{"nested units", base};
  nested.units = {"DecoderLayer", "Attention", "Linear"};
  all.push_back(nested);
  Scenario int8{"frozen in int8", mixed.recipe};
  int8.recipe.frozen_dtype = at::kChar;
  all.push_back(int8);
  Scenario fp8{"frozen in fp8, mixed precision, tied, checkpointed", mixed.recipe};
  fp8.recipe.frozen_dtype = at::kFloat8_e4m3fn;
  fp8.recipe.param_dtype = at::kBFloat16;
  fp8.recipe.size.tied = true;
  fp8.mixed = true;
  fp8.checkpointing = {"DecoderLayer"};
  all.push_back(fp8);
  return all;
}

void check(const Way& way, Scenario scenario, const std::shared_ptr<comm::World>& world) {
  SCOPED_TRACE(way.name + ", " + scenario.name + ", W=" + std::to_string(world->size()));
  scenario.recipe.device = world->device();
  const auto& recipe = scenario.recipe;
  test::ReferenceTrainer reference(recipe, world->size());
  const auto start = [&] {
    std::map<std::string, at::Tensor> copy;
    for (const auto& [name, weight] : reference.weights()) copy[name] = weight.clone();
    return copy;
  }();

  auto model = std::make_shared<models::Transformer>(recipe.size);
  shard::ShardOptions options;
  options.world = world;
  options.strategy = way.strategy;
  options.hybrid_shard_size = way.hybrid_shard_size;
  options.cpu_offload = way.cpu_offload;
  options.prefetch = way.prefetch;
  options.frozen.residency = way.residency;
  options.frozen.dtype = recipe.frozen_dtype;
  options.trainable = recipe.trainable;
  options.activation_checkpointing = scenario.checkpointing;
  options.kept_activations = scenario.kept;
  options.seed = recipe.seed;
  if (scenario.mixed) {
    options.mixed_precision.param = at::kBFloat16;
    options.mixed_precision.reduce = at::kFloat;
  }
  const shard::Policy policy{.units = scenario.units, .lone_unit_numel = 1000};
  if (way.residency == Residency::automatic) {
    // Room for about half of what is frozen.
    options.frozen.residency = Residency::sharded;
    const auto sliced =
        shard::make_plan(*model, policy, options, world->size()).held().frozen_slices;
    options.frozen.residency = Residency::automatic;
    options.frozen.memory_budget_bytes = sliced * (world->size() + 1) / 2;
  }
  auto engine = shard::fully_shard(model, policy, options);
  optim::AdamW optimizer(*engine, recipe.adamw);

  // Gloo's collectives for CUDA tensors sum in an order of their own.
  const bool exact_gradients = !way.reorders && recipe.micro_steps == 1 && world->device().is_cpu();
  for (int step = 0; step < 5; ++step) {
    const auto expected = reference.step();
    double loss_sum = 0;
    for (int micro = 0; micro < recipe.micro_steps; ++micro) {
      engine->set_gradient_sync(scenario.sync_every_micro_step || micro + 1 == recipe.micro_steps);
      const at::Tensor ids = test::batch_of(recipe, step, micro, world->rank());
      test::seed_forward(step, micro, world->rank());
      at::Tensor loss = models::next_token_loss(nn::call(*model, ids), ids) / recipe.micro_steps;
      loss.backward();
      loss_sum += loss.item<double>();
    }
    const double loss_bound = scenario.mixed ? 2e-3 : 1e-6 * std::max(1, 10 * step);
    EXPECT_NEAR(loss_sum, expected.losses[static_cast<std::size_t>(world->rank())], loss_bound)
        << "step " << step;
    for (const auto& item : reference.weights()) {
      const std::string& name = item.first;
      const at::Tensor gradient = engine->full_gradient(name);
      const auto found = expected.gradients.find(name);
      if (found == expected.gradients.end()) {
        EXPECT_FALSE(gradient.defined()) << name << " is frozen and has a gradient";
        continue;
      }
      ASSERT_TRUE(gradient.defined()) << name << " has no gradient";
      const double difference =
          (gradient.to(recipe.device) - found->second).abs().max().item<double>();
      const double bound = step == 0 && exact_gradients ? 0
                           : scenario.mixed             ? 2e-3
                                                        : 1e-6 * (step + 1);
      EXPECT_LE(difference, bound) << "gradient of " << name << " in step " << step;
    }
    const auto agreement = engine->agree();
    EXPECT_TRUE(agreement.finite);
    EXPECT_NEAR(agreement.gradient_norm, expected.gradient_norm,
                (scenario.mixed ? 1e-2 : 1e-5) * expected.gradient_norm);
    optimizer.step(recipe.lr,
                   recipe.clip ? optim::clip_factor(agreement.gradient_norm, *recipe.clip) : 1.0);
    engine->clear_gradients();
  }
  double moved = 0;
  for (const auto& [name, weight] : reference.weights()) {
    const at::Tensor sharded = engine->full_parameter(name).to(recipe.device, at::kFloat);
    const bool trains = !start.at(name).equal(weight);
    moved = std::max(moved, (weight - start.at(name)).abs().max().item<double>());
    if (!trains) {
      // Frozen slices are stored in the gathered dtype: exactly the start value, rounded once.
      const at::Tensor stored =
          scenario.mixed ? start.at(name).to(at::kBFloat16).to(at::kFloat) : start.at(name);
      EXPECT_TRUE(sharded.equal(stored)) << name << " is frozen and has changed";
      continue;
    }
    at::Tensor difference = (sharded - weight).abs();
    if (name.ends_with("qkv.bias")) {
      // The gradient of a key bias is zero in exact arithmetic, so AdamW moves it by rounding
      // noise: at most lr a step, in any direction.
      const auto dim = recipe.size.dim;
      EXPECT_LE(difference.narrow(0, dim, dim).max().item<double>(), 2 * 5 * 1.1 * recipe.lr)
          << name;
      difference.narrow(0, dim, dim).zero_();
    }
    EXPECT_LE(difference.max().item<double>(), scenario.mixed ? 4e-3 : 1e-5) << name;
  }
  EXPECT_GT(moved, 2e-3) << "the weights must have moved visibly";
}

// Every way with every scenario under FLOE_LONG; else a third of them, another third for each world
// size, so that one run of all world sizes meets every pair. Of 8 bits every pair: where slices cut
// rows differs in each.
void check_all() {
  auto world = test::join_world();
  const bool everything = std::getenv("FLOE_LONG") != nullptr;
  const auto all_ways = ways(world->size());
  const auto all_scenarios = scenarios();
  for (std::size_t w = 0; w < all_ways.size(); ++w)
    for (std::size_t s = 0; s < all_scenarios.size(); ++s)
      if (everything || (w + s + static_cast<std::size_t>(world->size())) % 3 == 0 ||
          all_ways[w].reorders || all_scenarios[s].recipe.frozen_dtype)
        check(all_ways[w], all_scenarios[s], world);
}

TEST_RANKS(Parity, OneRank, 1) { check_all(); }
TEST_RANKS(Parity, TwoRanks, 2) { check_all(); }
TEST_RANKS(Parity, ThreeRanks, 3) { check_all(); }
TEST_RANKS(Parity, FourRanks, 4) { check_all(); }

}  // namespace
}  // namespace floe::parity_test
