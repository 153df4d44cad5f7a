// Five training steps of OpenFlamingo's own train.py, by the engine: losses, gradient norms and
// final weights, both data sets in one pass and one after the other, on one rank and on several,
// under every strategy.
#include <ATen/ATen.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "floe/optim/lr_schedule.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/engine.h"
#include "tests/models/golden.h"
#include "tests/support/ranks.h"

namespace floe::train_steps_test {
namespace {

using shard::Residency;
using shard::Strategy;

struct Way {
  std::string name;
  bool one_pass = true;
  Strategy strategy = Strategy::full_shard;
  Residency residency = Residency::sharded;
  std::vector<std::string> checkpointing;
  // Embedding, head and patch convolution are units of their own, the rest of the tower is none.
  std::int64_t lone_unit_numel = 2000;
  // Parameters are gathered in this type; the goldens are then met to its rounding only.
  std::optional<at::ScalarType> param;
  nn::KeptActivations kept;  // of what is checkpointed
};

std::vector<Way> all_ways(int world) {
  std::vector<Way> ways{
      {"one pass"},
      {"one after the other", false},
      {"shard_grad_op", true, Strategy::shard_grad_op},
      {"no_shard", false, Strategy::no_shard},
      {"frozen resident", true, Strategy::full_shard, Residency::resident},
      {"checkpointed", true, Strategy::full_shard, Residency::sharded, {"DecoderLayer"}},
      {"everything checkpointed",
       false,
       Strategy::full_shard,
       Residency::sharded,
       {"DecoderLayer", "GatedCrossAttention", "PerceiverResampler"}},
      // So is every module outside of the units that has parameters.
      {"lone units", true, Strategy::full_shard, Residency::sharded, {}, 1},
      {"bf16", true, Strategy::full_shard, Residency::sharded, {"DecoderLayer"}, 1, at::kBFloat16},
  };
  // What they keep: products too, all of it in host memory.
  Way kept = ways[6];
  kept.name = "everything checkpointed, products kept";
  kept.kept = {.products = true};
  ways.push_back(kept);
  kept.name = "parts of gates checkpointed, products kept";  // the gates are arguments
  kept.checkpointing = {"FeedForward", "MaskedCrossAttention"};
  ways.push_back(kept);
  kept.checkpointing = ways[6].checkpointing;
  kept.name = "everything checkpointed, products kept in host memory";
  kept.one_pass = true;
  kept.kept = {.products = true, .in_host = true, .in_host_from = 0};
  ways.push_back(kept);
  if (world == 4)
    ways = {{"hybrid", true, Strategy::hybrid}, {"hybrid, two passes", false, Strategy::hybrid}};
  return ways;
}

// What a run of the goldens says: per step the losses of both data sets, the norm and the rate.
struct Record {
  std::vector<double> laion, mmc4, norms;
  std::map<std::string, at::Tensor> weights;
};

struct Run {
  std::string model;    // golden model
  std::string batches;  // file with its batches
  nlohmann::json config;
  Record expected;
};

Run single_run(const std::string& model) {
  const std::string folder = model + "-train/";
  Run run{
      model, folder + "batches.safetensors", test::golden_json(folder + "train_config.json"), {}};
  const auto metrics = test::golden_json(folder + "metrics.json");
  for (const auto& step : metrics["steps"]) {
    run.expected.laion.push_back(step["loss_laion"].get<double>());
    run.expected.mmc4.push_back(step["loss_mmc4"].get<double>());
    run.expected.norms.push_back(step["grad_norm_before_clip"].get<double>());
  }
  run.expected.weights = test::golden_tensors(folder + "final_trainable.safetensors");
  return run;
}

// Two processes with different data; DDP averages their gradients.
Run ddp_run(int rank) {
  const std::string folder = "neox_x2-train-world2/";
  const auto metrics = test::golden_json(folder + "metrics_ddp.json");
  Run run{"neox_x2",
          str(folder, "batches_rank", rank, ".safetensors"),
          test::golden_json("neox_x2-train/train_config.json"),
          {}};
  for (const auto& step : metrics["per_rank_losses"][static_cast<std::size_t>(rank)]) {
    run.expected.laion.push_back(step["loss_laion"].get<double>());
    run.expected.mmc4.push_back(step["loss_mmc4"].get<double>());
  }
  for (const auto& norm : metrics["grad_norm_before_clip"])
    run.expected.norms.push_back(norm.get<double>());
  run.expected.weights = test::golden_tensors(folder + "final_trainable_ddp.safetensors");
  return run;
}

// Errors of all checks of a process, for docs/numerics.md (FLOE_SHOW_ERRORS).
struct Errors {
  double loss = 0, norm = 0, weight = 0, movement = 0;
  ~Errors() {
    if (std::getenv("FLOE_SHOW_ERRORS"))
      std::cerr << "worst errors: loss " << loss << ", norm " << norm << " (relative), weight "
                << weight << ", movement " << movement << " (relative)\n";
  }
} worst;

void check(const Run& run, const Way& way, const std::shared_ptr<comm::World>& world) {
  SCOPED_TRACE(str(run.model, ", ", way.name, ", W=", world->size()));
  const test::GoldenModel golden = test::golden_model(run.model);
  shard::ShardOptions options;
  options.world = world;
  options.strategy = way.strategy;
  options.hybrid_shard_size = 2;
  options.frozen.residency = way.residency;
  options.activation_checkpointing = way.checkpointing;
  options.kept_activations = way.kept;
  options.mixed_precision.param = way.param;
  options.mixed_precision.reduce = at::kFloat;
  options.source = golden.built.source.get();
  const shard::Policy policy{
      .units = {"DecoderLayer", "GatedCrossAttention", "PerceiverResampler", "ViTBlock"},
      .lone_unit_numel = way.lone_unit_numel};
  const auto engine = shard::fully_shard(golden.built.module, policy, options);
  golden.built.module->train();
  optim::AdamW optimizer(*engine,
                         {.decay = {run.config["wd"].get<double>(), {"*gated_cross_attn*"}}});
  const optim::LrSchedule schedule{
      .kind = optim::lr_schedule_from_name(run.config["sched"].get<std::string>()),
      .warmup_steps = run.config["warmup"].get<std::int64_t>(),
      .total_steps = run.config["num_steps"].get<std::int64_t>()};
  models::InputOptions how;
  how.loss.weight = {run.config["ml"].get<double>(), run.config["mm"].get<double>()};
  how.num_sources = 2;
  how.device = world->device();
  how.dtype = way.param.value_or(at::kFloat);
  // The goldens were computed on a CPU; another device sums in another order.
  const double bound = way.param ? 3e-2 : world->device().is_cpu() ? 1e-5 : 1e-4;
  const auto whole = [&](const std::string& name) {
    return engine->full_parameter(name).to(at::kCPU, at::kFloat, false, /*copy=*/true);
  };

  std::map<std::string, at::Tensor> before;
  for (const auto& parameter : nn::named_parameters(*golden.built.module))
    before[parameter.name] = whole(parameter.name);

  const auto batches = test::golden_tensors(run.batches);
  ASSERT_EQ(run.expected.laion.size(), 5U);
  for (int step = 0; step < 5; ++step) {
    const PackedBatch laion = test::golden_batch(batches, step, "laion");
    const PackedBatch mmc4 = test::golden_batch(batches, step, "mmc4");
    std::vector<PackedBatch> passes{laion, mmc4};
    if (way.one_pass) passes = {models::concatenate(laion, mmc4)};
    std::vector<double> losses(2, 0);
    for (const PackedBatch& batch : passes) {
      const auto input = models::prepare(golden.model(), batch, how);
      const auto [loss, sums] = models::training_loss(golden.model(), input);
      loss.backward();
      for (std::size_t s = 0; s < 2; ++s)
        if (input->labels_of_source[s] > 0)
          losses[s] += sums[static_cast<std::int64_t>(s)].item<double>() /
                       static_cast<double>(input->labels_of_source[s]);
    }
    const auto at_step = static_cast<std::size_t>(step);
    const auto near = [](double ours, double theirs, double bound, double& seen) {
      seen = std::max(seen, std::abs(ours - theirs) / std::max(1.0, std::abs(theirs)));
      EXPECT_NEAR(ours, theirs, bound * std::max(1.0, std::abs(theirs)));
    };
    near(losses[0], run.expected.laion[at_step], bound, worst.loss);
    near(losses[1], run.expected.mmc4[at_step], bound, worst.loss);
    const auto agreed = engine->agree();
    EXPECT_TRUE(agreed.finite);
    near(agreed.gradient_norm, run.expected.norms[at_step], bound, worst.norm);
    optimizer.step(run.config["lr"].get<double>() * schedule.factor(step),
                   optim::clip_factor(agreed.gradient_norm, run.config["clip"].get<double>()));
    engine->clear_gradients();
  }

  double moved = 0;
  double apart_squares = 0, expected_squares = 0;  // of all elements that train
  const at::Tensor rows = at::tensor(golden.model().info().trained_rows, at::kLong);
  for (const auto& parameter : nn::named_parameters(*golden.built.module)) {
    const at::Tensor now = whole(parameter.name);
    if (!parameter.tensor.requires_grad()) {
      EXPECT_TRUE(now.equal(before.at(parameter.name)))
          << parameter.name << " is frozen and changed";
      continue;
    }
    moved = std::max(moved, test::largest_difference(now, before.at(parameter.name)));
    std::string name = parameter.name;
    const bool is_rows = name.ends_with(".rows");
    if (is_rows) name.replace(name.size() - 4, 4, "weight");
    at::Tensor expected = run.expected.weights.at(name);
    if (is_rows) {
      // The reference has trained the same rows of its table and no other.
      at::Tensor table = before.at(name).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
      table.index_copy_(0, rows, expected.index_select(0, rows));
      EXPECT_TRUE(way.param || table.equal(expected)) << name;
      expected = expected.index_select(0, rows);
    }
    const at::Tensor begun = before.at(parameter.name).to(at::kCPU, at::kDouble);
    const auto squares = [](const at::Tensor& t) { return t.square().sum().item<double>(); };
    apart_squares += squares(now.to(at::kCPU, at::kDouble) - expected.to(at::kCPU, at::kDouble));
    expected_squares += squares(expected.to(at::kCPU, at::kDouble) - begun);
    const double difference = test::largest_difference(now, expected);
    worst.weight = std::max(worst.weight, difference);
    // AdamW moves an element by at most the rate, in whatever direction rounding gives it.
    EXPECT_LE(difference,
              way.param || !world->device().is_cpu() ? 10 * run.config["lr"].get<double>() : 1e-5)
        << name;
  }
  EXPECT_GT(moved, 1e-3) << "the weights must have moved visibly";
  // Single elements may go any way where their gradient is nothing but rounding; all together go
  // the way of the reference.
  const double apart = std::sqrt(apart_squares / expected_squares);
  worst.movement = std::max(worst.movement, apart);
  EXPECT_LT(apart, way.param ? 0.2 : 1e-2);
}

void check_all(const std::string& model) {
  const auto world = test::join_world();
  for (const Way& way : all_ways(world->size())) check(single_run(model), way, world);
}

// Every rank has the same batch, so that the result is that of one process.
TEST_RANKS(TrainSteps, OptOneRank, 1) { check_all("opt_x1"); }
TEST_RANKS(TrainSteps, OptTwoRanks, 2) { check_all("opt_x1"); }
TEST_RANKS(TrainSteps, OptFourRanks, 4) { check_all("opt_x1"); }
TEST_RANKS(TrainSteps, GptNeoXOneRank, 1) { check_all("neox_x2"); }
TEST_RANKS(TrainSteps, GptNeoXThreeRanks, 3) { check_all("neox_x2"); }

TEST_RANKS(TrainSteps, DifferentDataOnTwoRanks, 2) {
  const auto world = test::join_world();
  for (const Way& way : all_ways(2)) check(ddp_run(world->rank()), way, world);
}

}  // namespace
}  // namespace floe::train_steps_test
