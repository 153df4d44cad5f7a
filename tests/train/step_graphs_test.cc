// Recorded and replayed steps on the GPU train as steps that run do: the same losses and weights,
// through alternating shapes, micro-batches, a step that is skipped, validation and sets that train
// in turn; no replay makes the host wait or takes more memory.
#include "floe/train/step/step_graphs.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/models/flamingo/flamingo.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/group/flat_group.h"
#include "tests/models/small_models.h"
#include "tests/support/ranks.h"

namespace floe::step_graphs_test {
namespace {

using train::StepGraphs;

using test::kMpt;
using test::kNeox;

const at::Device kGpu(at::kCUDA, 0);

// Two shapes, and values of their own for every number.
PackedBatch batch_of(int number) {
  const std::vector<test::Page> pages =
      number % 2 == 0 ? std::vector<test::Page>{{37, 2, 3, {4, 20}},
                                                {32, 1, 1, {0}},
                                                {9, 0, 0, {}},
                                                {64, 2, 2, {1}}}
                      : std::vector<test::Page>{{20, 1, 1, {0}}, {90, 2, 2, {0, 33}}};
  PackedBatch batch = test::batch_of_pages(pages, number);
  batch.source = at::arange(static_cast<std::int64_t>(pages.size()), at::kLong).remainder(2);
  return batch;
}

// As data comes: no two have the same lengths. With room for every image before its text.
PackedBatch natural_batch(int number) {
  std::vector<test::Page> pages;
  for (std::int64_t i = 0; i < 6; ++i) {
    const std::int64_t length = 20 + (number * 37 + i * 53) % 41;
    pages.push_back({length, 2, 2, {0, 5 + (number + i) % 9}});
  }
  pages.push_back({64, 1, 1, {0}});
  return test::batch_of_pages(pages, number);
}

struct Case {
  std::string name;
  const nlohmann::json* lm = &kMpt;
  int world = 8;  // 1: of NCCL, else pretended
  bool half = true;
  std::vector<std::string> checkpointing;
  int micro_batches = 1;
  int steps = 12;
  bool sets = false;
  shard::Strategy strategy = shard::Strategy::full_shard;
  bool natural = false;
  std::shared_ptr<comm::World> joined = nullptr;  // instead of `world`
};

class Tally final : public shard::Observer {
 public:
  void on(const shard::Event& event) override { counts[static_cast<int>(event.kind)] += 1; }
  bool only_counts() const override { return true; }
  std::map<int, int> counts;
};

class Job {
 public:
  Job(const Case& c, bool with_graphs)
      : case_(c),
        stream_(train::computing_stream(kGpu)),
        model_(std::make_shared<models::Flamingo>(test::small_flamingo(*c.lm))) {
    nn::set_trainable(*model_, model_->trained_by_default());
    shard::ShardOptions options;
    options.world = c.joined       ? c.joined
                    : c.world == 1 ? comm::World::join({.backend = comm::Backend::nccl})
                                   : comm::World::fake(0, c.world, kGpu);
    if (c.half) options.mixed_precision = {.param = at::kBFloat16, .reduce = at::kFloat};
    options.activation_checkpointing = c.checkpointing;
    options.strategy = c.strategy;
    options.seed = 3;
    if (c.sets) options.sets = {{"a", {"perceiver.*"}}, {"b", {"*gated_cross_attn_layer.*"}}};
    engine_ = shard::fully_shard(
        model_,
        {.units = {"DecoderLayer", "GatedCrossAttention", "PerceiverResampler", "ViTBlock"}},
        options);
    for (shard::FlatGroup* group :
         engine_->trainable_groups())  // gates that are closed train nothing
      for (const shard::Piece& piece : group->pieces())
        if (group->parameter(piece.index).name.ends_with("_gate"))
          group->slice().narrow(0, piece.slice_offset, piece.numel).fill_(0.5);
    for (std::size_t set = 0; set < engine_->sets().size(); ++set)
      optimizers_.push_back(std::make_unique<optim::AdamW>(*engine_, optim::AdamWOptions{}, set));
    engine_->add_observer(&tally);
    if (with_graphs) graphs.emplace(*model_, *engine_, StepGraphs::Options());
    input_options_.device = kGpu;
    input_options_.dtype = c.half ? at::kBFloat16 : at::kFloat;
    input_options_.num_sources = 2;
    input_options_.loss.weight = {0.2, 1.0};
  }
  ~Job() { engine_->remove_observer(&tally); }

  auto prepare(int number, bool broken = false) {
    if (case_.joined) number += 1000 * case_.joined->rank();
    PackedBatch batch = case_.natural ? natural_batch(number) : batch_of(number);
    if (broken) batch.images.fill_(std::numeric_limits<float>::quiet_NaN());
    models::InputOptions options = input_options_;
    options.rounded = case_.natural && graphs && graphs->should_round(batch);
    return models::prepare(*model_, batch, options);
  }
  train::PassLosses pass(const std::shared_ptr<const models::ModelInput>& input) {
    return graphs ? graphs->run(input) : train::run_pass(*model_, input);
  }

  // All losses, in order, that of a validation in between included.
  std::vector<double> train() {
    std::vector<double> losses;
    for (int step = 0; step < case_.steps; ++step) {
      if (case_.sets && step % 10 == 9) engine_->activate(1 - engine_->active_set());
      for (int micro = 0; micro < case_.micro_batches; ++micro) {
        const train::PassLosses passed =
            pass(prepare(step * case_.micro_batches + micro, /*broken=*/step == 9));
        losses.push_back(passed.loss.item<double>());
        for (const double sum :
             {passed.of_source[0].item<double>(), passed.of_source[1].item<double>()})
          losses.push_back(sum);
      }
      const shard::Agreement agreement = engine_->agree();
      EXPECT_EQ(agreement.finite, step != 9);
      if (agreement.finite) {
        losses.push_back(agreement.gradient_norm);
        optimizers_[engine_->active_set()]->step(1e-3);
      }
      engine_->clear_gradients();
      if (step == 6) {
        const at::NoGradGuard no_gradients;
        losses.push_back(std::get<0>(models::training_loss(*model_, prepare(100))).item<double>());
      }
    }
    return losses;
  }

  std::map<std::string, at::Tensor> weights() {
    std::map<std::string, at::Tensor> all;
    for (shard::FlatGroup* group : engine_->trainable_groups())
      all[group->name()] = group->values().to(at::kCPU, at::kDouble);
    return all;
  }
  shard::Engine& engine() { return *engine_; }
  models::Flamingo& model() { return *model_; }

  Tally tally;
  std::optional<StepGraphs> graphs;

 private:
  Case case_;
  std::unique_ptr<c10::StreamGuard> stream_;
  std::shared_ptr<models::Flamingo> model_;
  std::shared_ptr<shard::Engine> engine_;
  std::vector<std::unique_ptr<optim::AdamW>> optimizers_;
  models::InputOptions input_options_;
};

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> weights;
  std::map<int, int> events;
  std::optional<StepGraphs::Counts> counts;
};

Trained train(const Case& c, bool with_graphs) {
  Job job(c, with_graphs);
  Trained trained{job.train(), job.weights(), job.tally.counts, {}};
  if (job.graphs) trained.counts = job.graphs->counts();
  return trained;
}

double loss_difference(const Trained& a, const Trained& b) {
  double most = 0;
  EXPECT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    if (std::isfinite(a.losses[i]) || std::isfinite(b.losses[i]))
      most = std::max(most, std::abs(a.losses[i] - b.losses[i]) / (1 + std::abs(a.losses[i])));
  return most;
}

double difference(const Trained& a, const Trained& b) {
  double most = loss_difference(a, b);
  for (const auto& [name, values] : a.weights)
    most = std::max(most, (values - b.weights.at(name)).abs().max().item<double>());
  return most;
}

// Kernels that sum with atomics round differently from run to run; beyond that nothing may differ,
// and where two runs are equal bit for bit the replayed one is equal to them.
void expect_replayed_as_run(const Case& c) {
  const Trained first = train(c, false), second = train(c, false);
  const Trained replayed = train(c, true);
  const double noise = difference(first, second), off = difference(first, replayed);
  std::cout << c.name << ": a repeated run differs by " << noise << ", replayed steps by " << off
            << "; " << replayed.counts->replayed << " replayed, " << replayed.counts->recorded
            << " recorded, " << replayed.counts->ran << " run" << std::endl;
  EXPECT_LE(off, 4 * noise);
  EXPECT_EQ(replayed.events, first.events);
  EXPECT_GE(replayed.counts->recorded, 2);
  EXPECT_GE(replayed.counts->replayed, 2);
  EXPECT_GT(replayed.counts->pool_bytes, 0);
}

class Replayed : public testing::TestWithParam<Case> {};
TEST_P(Replayed, TrainsAsStepsThatRun) { expect_replayed_as_run(GetParam()); }

// Real collectives in the graph, between ranks with data of their own.
TEST_RANKS(ReplayedStep, OverNccl, 2) {
  const auto world = test::join_world({.over_nccl = true});
  for (const auto strategy : {shard::Strategy::full_shard, shard::Strategy::no_shard})
    expect_replayed_as_run({.name = "two ranks over NCCL", .strategy = strategy, .joined = world});
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Replayed,
    testing::Values(Case{"mpt bf16 W=8"}, Case{.name = "neox bf16 W=8", .lm = &kNeox},
                    Case{.name = "neox fp32 W=8", .lm = &kNeox, .half = false},
                    Case{.name = "mpt bf16 W=1 nccl", .world = 1},
                    Case{.name = "mpt fp32 W=1 nccl", .world = 1, .half = false},
                    Case{.name = "checkpointed",
                         .checkpointing = {"DecoderLayer", "GatedCrossAttention"}},
                    Case{.name = "micro-batches", .lm = &kNeox, .micro_batches = 4},
                    Case{.name = "shard_grad_op", .strategy = shard::Strategy::shard_grad_op},
                    Case{.name = "no_shard", .strategy = shard::Strategy::no_shard},
                    Case{.name = "sets in turn", .steps = 35, .sets = true}),
    [](const auto& info) {
      std::string name = info.param.name;
      for (char& c : name)
        if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
      return name;
    });

nlohmann::json mpt_with_packed_attention() {
  nlohmann::json json = kMpt;
  json["n_heads"] = 2;  // of 64 features
  return json;
}
const nlohmann::json kPackedMpt = mpt_with_packed_attention();

// Rounded up, natural batches share a few graphs, and train as they do without rounding. Where
// attention is packed: what is padded for it has the exact lengths of its sequences, and they
// do not repeat.
TEST(ReplayedStep, OfNaturalDataRoundedUp) {
  for (const nlohmann::json* lm : {&kPackedMpt, &kNeox}) {
    const Case c{.name = "natural", .lm = lm, .steps = 24, .natural = true};
    const Trained ran = train(c, false), replayed = train(c, true);
    const double off = loss_difference(ran, replayed);
    std::cout << "natural data: losses of replayed steps differ by " << off << "; "
              << replayed.counts->replayed << " replayed, " << replayed.counts->recorded
              << " recorded, " << replayed.counts->ran << " run" << std::endl;
    EXPECT_LT(off, 0.02);  // bf16, whose products are cut differently
    EXPECT_GE(replayed.counts->replayed, 8);
  }
}

TEST(ReplayedStep, TakesNoMoreMemoryAndNeverWaits) {
  Job job({.name = "memory"}, true);
  const auto step = [&](const auto& input) {
    job.pass(input);
    job.engine().clear_gradients();
  };
  for (int i = 0; i < 12; ++i) step(job.prepare(i));
  const StepGraphs::Counts before = job.graphs->counts();
  ASSERT_EQ(before.kept, 2u);
  const auto allocated = [] {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
    return std::pair(stats.allocated_bytes[0].current, stats.reserved_bytes[0].current);
  };
  const auto inputs = std::pair(job.prepare(50), job.prepare(51));
  const auto bytes = allocated();
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  for (int i = 0; i < 25; ++i) {
    EXPECT_NO_THROW(step(inputs.first));
    EXPECT_NO_THROW(step(inputs.second));
  }
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  EXPECT_EQ(allocated(), bytes);
  const StepGraphs::Counts after = job.graphs->counts();
  EXPECT_EQ(after.replayed, before.replayed + 50);
  EXPECT_EQ(after.pool_bytes, before.pool_bytes);
}

TEST(ReplayedStep, OnlyTheMostUsedGraphsAreKept) {
  Job job({.name = "most"}, false);
  job.graphs.emplace(job.model(), job.engine(), StepGraphs::Options{.passes_before = 1, .most = 1});
  for (int i = 0; i < 12; ++i) {
    job.pass(job.prepare(i));
    job.engine().clear_gradients();
  }
  const StepGraphs::Counts counts = job.graphs->counts();
  EXPECT_EQ(counts.kept, 1u);
  EXPECT_EQ(counts.dropped, counts.recorded - 1);
  EXPECT_GT(counts.dropped, 2);
}

// Who looks at memory or clocks sees passes that run.
TEST(ReplayedStep, RunsWhileItIsWatched) {
  class Watch final : public shard::Observer {
    void on(const shard::Event&) override {}
  } watch;
  Job job({.name = "watched"}, true);
  job.engine().add_observer(&watch);
  for (int i = 0; i < 10; ++i) {
    job.pass(job.prepare(2 * i));
    job.engine().clear_gradients();
  }
  job.engine().remove_observer(&watch);
  EXPECT_EQ(job.graphs->counts().ran, 10);
  EXPECT_EQ(job.graphs->counts().recorded, 0);
}

TEST(StepGraphsOptions, RefuseWhatCannotBeRecorded) {
  const auto refused = [](const shard::ShardOptions& given, StepGraphs::Options options = {}) {
    const auto stream = train::computing_stream(kGpu);
    const auto model = std::make_shared<models::Flamingo>(test::small_flamingo(kMpt));
    nn::set_trainable(*model, model->trained_by_default());
    const auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, given);
    EXPECT_THROW(StepGraphs(*model, *engine, options), ConfigError);
  };
  refused({.world = comm::World::fake(0, 2, kGpu), .cpu_offload = true});
  refused({.world = comm::World::fake(0, 2, at::kCPU)});
  refused({.world = comm::World::fake(0, 2, kGpu), .activation_checkpointing = {"DecoderLayer"}},
          {.drops_out = true});
}

}  // namespace
}  // namespace floe::step_graphs_test
