// Ranks on cores: schedules whose times can be worked out by hand, and rehearsals that take the
// CPU's paths.
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/kernels/attention.h"
#include "floe/kernels/kernels.h"
#include "floe/kernels/rehearsal.h"
#include "floe/models/transformer.h"
#include "floe/nn/attention.h"
#include "floe/nn/module.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/plan/calibrate/calibrate.h"
#include "floe/plan/machine/simulate_cores.h"
#include "floe/plan/step/step.h"
#include "floe/plan/step/worlds.h"
#include "floe/shard/engine.h"
#include "floe/strategy/strategy_options.h"
#include "tests/config/expect_error.h"
#include "tests/plan/planned.h"

namespace floe::cores_test {
namespace {

using comm::FakeCollective;
using plan::Machine;
using plan::TraceStep;

// Two cores; each moves 1 GB in a second whether the other does or not, and so does a link.
Machine plain_cores() {
  Machine machine = plan::find_machine("cpu");
  machine.cores = 2;
  machine.core_share = machine.core_memory_share = 0.5;
  machine.memory_gbs = machine.host_gbs = machine.update_gbs = 2;
  machine.fp32_tflops = 2;
  machine.product_half = 0;
  machine.kernel_us = machine.step_ms = machine.intra_us = machine.inter_us = 0;
  machine.gpus_per_node = 16;
  machine.intra_gbs = 2;  // both directions
  machine.intra_share = 1;
  machine.collective_cores = 1;
  machine.reduce_gbs = 1e9;
  return machine;
}

TraceStep pass_of(double seconds) {
  TraceStep step;
  step.bytes = 1e9 * seconds;
  return step;
}
TraceStep gather_of(double seconds, int ranks, int stream = 1) {
  TraceStep step;
  step.kind = TraceStep::Kind::collective;
  step.stream = stream;
  step.collective = {FakeCollective::Kind::all_gather,
                     std::llround(1e9 * seconds * ranks / (ranks - 1)), ranks, 1, true};
  return step;
}
TraceStep marked(TraceStep::Kind kind, int event, int stream) {
  TraceStep step;
  step.kind = kind;
  step.event = event;
  step.stream = stream;
  return step;
}
TraceStep record(int event, int stream) { return marked(TraceStep::Kind::record, event, stream); }
TraceStep block(int event, int stream) { return marked(TraceStep::Kind::block, event, stream); }

plan::StepTime simulated(const std::vector<TraceStep>& steps, int ranks,
                         const Machine& machine = plain_cores()) {
  plan::StepTime time;
  plan::simulate_pass_on_cores(steps, machine, ranks, time);
  return time;
}

TEST(Cores, RanksShareThem) {
  const std::vector<TraceStep> work{pass_of(2)};
  // Alone a rank has both cores; two have one each; four have half of one.
  EXPECT_NEAR(simulated(work, 1).seconds, 1, 1e-9);
  EXPECT_NEAR(simulated(work, 2).seconds, 2, 1e-9);
  EXPECT_NEAR(simulated(work, 3).seconds, 3, 1e-9);
  EXPECT_NEAR(simulated(work, 4).seconds, 4, 1e-9);
  // What is small is one thread's.
  EXPECT_NEAR(simulated({pass_of(1e-5)}, 1).seconds, 1e-5, 1e-12);
}

TEST(Cores, OneCoreMayReachMoreThanItsPart) {
  Machine machine = plain_cores();
  machine.cores = 4;
  machine.core_memory_share = 0.4;  // memory has its limit
  const double alone = plan::CoresOfRank(machine, 1).memory;
  EXPECT_NEAR(alone, 0.25, 1e-12);  // with four threads all of it
  EXPECT_NEAR(plan::CoresOfRank(machine, 4).memory, 0.25, 1e-12);
  // Three ranks of one thread each leave a core idle: 0.4 + 0.6 · 2 / 3 over three.
  EXPECT_EQ(plan::CoresOfRank(machine, 3).threads, 1);
  EXPECT_NEAR(plan::CoresOfRank(machine, 3).memory, 0.8 / 3, 1e-12);
}

TEST(Cores, ACollectiveBesideComputationTakesItsCores) {
  // One second of a gather beside two of computation: while both run on both ranks, four threads
  // want two cores.
  const std::vector<TraceStep> beside{gather_of(1, 2), record(0, 1), pass_of(2), block(0, 0)};
  EXPECT_NEAR(simulated(beside, 2).seconds, 3, 1e-9);
  EXPECT_NEAR(simulated(beside, 2).exposed, 0, 1e-9);
  // Waited for at once it takes its own time.
  const std::vector<TraceStep> before{gather_of(1, 2), record(0, 1), block(0, 0), pass_of(2)};
  EXPECT_NEAR(simulated(before, 2).seconds, 3, 1e-9);
  EXPECT_NEAR(simulated(before, 2).exposed, 1, 1e-9);
  // With cores to spare it is hidden.
  Machine wide = plain_cores();
  wide.cores = 8;
  wide.core_memory_share = wide.core_share = 1.0 / 8;
  wide.memory_gbs = 8;
  wide.collective_cores = 0.01;
  std::vector<TraceStep> hidden = beside;
  hidden[2] = pass_of(8);  // by four threads
  EXPECT_NEAR(simulated(hidden, 2, wide).exposed, 0, 1e-9);
  EXPECT_NEAR(simulated(hidden, 2, wide).seconds, 2, 0.02);
}

TEST(Cores, CollectivesOfAStreamFollowEachOther) {
  const std::vector<TraceStep> two{gather_of(1, 2), gather_of(1, 2), record(0, 1), block(0, 0)};
  EXPECT_NEAR(simulated(two, 2).seconds, 2, 1e-9);
  // An event that took place is not waited for.
  const std::vector<TraceStep> over{gather_of(1, 2), record(0, 1), block(0, 0), block(0, 0)};
  EXPECT_NEAR(simulated(over, 2).seconds, 1, 1e-9);
  Machine summing = plain_cores();
  summing.reduce_gbs = 1;
  TraceStep reduce = gather_of(1, 2, 2);
  reduce.collective.kind = FakeCollective::Kind::reduce_scatter;
  EXPECT_NEAR(simulated({reduce}, 2, summing).seconds, 3, 1e-9);  // 2 GB are summed
}

TEST(Cores, ProductsOfFewRowsReachLess) {
  Machine machine = plain_cores();
  machine.product_half = 100;
  machine.memory_gbs = 1e6;
  TraceStep product;
  product.kind = TraceStep::Kind::product;
  product.bits = 32;
  product.m = 100, product.n = product.k = 1000;
  product.flops = 2e12;
  EXPECT_NEAR(simulated({product}, 1, machine).seconds, 2, 1e-9);
  product.m = 1000;
  EXPECT_NEAR(simulated({product}, 1, machine).seconds, 1.1, 1e-9);
}

// ---- rehearsals ----

constexpr std::int64_t kRows = 4, kTokens = 64;

plan::PlanConfig config_of(int world, const std::vector<std::string>& changes = {}) {
  std::vector<std::string> all{
      "model={type: transformer, vocab: 64, dim: 128, layers: 3, heads: 2, context: 64, "
      "adapter: 8}",
      "world=" + std::to_string(world)};
  all.insert(all.end(), changes.begin(), changes.end());
  return test::small_config(all);
}

plan::StepReport rehearsed(const plan::PlanReport& report, const std::string& machine = "cpu") {
  plan::StepSettings settings{plan::find_machine(machine), {{kRows, kTokens, 0}}};
  settings.machine.gpus_per_node = 16;
  return plan::plan_step(report, settings);
}

TEST(CpuRehearsal, GlooCarriesCollectivesBesideTheRank) {
  const plan::PlanReport report =
      plan::make_report(plan::subject_of(config_of(3, {"train.trainable=[\"*\"]"})));
  std::int64_t gathers = 0, reductions = 0, waits = 0;
  std::set<int> working;
  for (const TraceStep& step : rehearsed(report).trace.steps) {
    if (step.kind == TraceStep::Kind::collective) {
      const bool gather = step.collective.kind == FakeCollective::Kind::all_gather;
      (gather ? gathers : reductions) += 1;
      EXPECT_EQ(step.stream, gather ? 1 : 2);
    } else if (step.kind == TraceStep::Kind::block) {
      waits += step.stream == 0;
    } else if (step.kind != TraceStep::Kind::record) {
      working.insert(step.stream);
    }
  }
  EXPECT_EQ(working, std::set<int>{0});  // casts and sums too are the rank's own
  EXPECT_EQ(gathers, report.moved.gathers);
  EXPECT_EQ(reductions, report.moved.reduce_scatters);
  EXPECT_EQ(waits, gathers + reductions);  // each is waited for once
}

class Listener final : public kernels::Rehearsal {
 public:
  explicit Listener(bool cpu) : cpu_(cpu) {}
  void pass(const char*, std::int64_t) override {}
  void coded_product(std::int64_t, std::int64_t, std::int64_t) override {}
  void attention(const kernels::AttentionWork&) override {}
  bool of_cpu() const override { return cpu_; }

 private:
  bool cpu_;
};

TEST(CpuRehearsal, HasNoKernelsOfAGpu) {
  const at::Tensor x =
      at::empty({4, 64}, at::TensorOptions().device(c10::kMeta).dtype(at::kBFloat16));
  for (const bool cpu : {false, true}) {
    Listener listener(cpu);
    const kernels::RehearsalScope rehearsing(listener);
    EXPECT_EQ(kernels::usable({x}), !cpu);
    EXPECT_EQ(kernels::attention_has(at::kBFloat16, 64, x.device()), !cpu);
    EXPECT_EQ(nn::packs(x.options(), 64, {}), !cpu);
    EXPECT_EQ(kernels::acts_as_cpu(x), cpu);
    EXPECT_EQ(kernels::acts_as_cpu(x.device()), cpu);
  }
  EXPECT_FALSE(kernels::acts_as_cpu(x));
  EXPECT_TRUE(kernels::acts_as_cpu(at::empty({1})));
}

// What a step of the same plan holds on the CPU at most, with slices and without optimizer state.
std::int64_t measured_peak(const plan::PlanConfig& config) {
  const plan::PlanSubject subject = plan::subject_of(config);
  auto model = std::make_shared<models::Transformer>(plan::transformer_size_of(config.model));
  shard::ShardOptions options = strategy::shard_options_of(subject.strategy);
  options.trainable = subject.trainable;
  options.world = comm::World::fake(0, config.world_size());
  const std::int64_t before = diagnostics::device_memory(at::kCPU).current_bytes;
  const auto engine =
      shard::fully_shard(model, strategy::policy_of(subject.strategy, *model), options);
  const at::Tensor ids = at::randint(0, 64, {kRows, kTokens}, at::kLong);
  const auto step = [&] {
    const at::Tensor loss = models::next_token_loss(nn::call(*model, ids), ids);
    loss.backward();
  };
  step();
  engine->clear_gradients();
  diagnostics::reset_peak(at::kCPU);
  step();
  return diagnostics::device_memory(at::kCPU).peak_bytes - before;
}

TEST(CpuRehearsal, MemoryIsWhatTheCounterSees) {
  for (const int world : {1, 2, 3, 4})
    for (const char* change :
         {"strategy.prefetch=1", "train.trainable=[\"*\"]", "strategy.sharding=shard_grad_op",
          "strategy.activation_checkpointing=[DecoderLayer]"}) {
      const plan::PlanConfig config = config_of(world, {change});
      const plan::StepReport step = rehearsed(plan::make_report(plan::subject_of(config)));
      const auto planned = static_cast<double>(step.trace.memory.peak);
      const auto measured = static_cast<double>(measured_peak(config));
      // A fake world has no windows of Gloo's sums.
      const double windows = world == 1 ? 0 : 2.0 * (world - 1) / world * 4 * 128 * 4 * 128;
      EXPECT_NEAR(planned, measured, 0.05 * measured + windows) << world << " ranks, " << change;
    }
}

TEST(CpuRehearsal, MemoryOfAMachineIsThatOfItsRanks) {
  const plan::StepReport four = rehearsed(plan::make_report(plan::subject_of(config_of(4))));
  EXPECT_EQ(four.needed(), 4 * four.peak());
  EXPECT_GT(four.utilisation(), 0);
  EXPECT_LT(four.utilisation(), 1);
}

TEST(CpuRehearsal, RefusesProductsInEightBits) {
  const plan::PlanReport report = plan::make_report(plan::subject_of(
      config_of(2, {"strategy.frozen.compute=fp8", "strategy.mixed_precision.param=bf16"})));
  test::expect_part(test::config_error([&] { rehearsed(report); }), "frozen.compute");
}

TEST(CpuMachine, SaysWhatItIsLike) {
  const auto path = std::filesystem::temp_directory_path() / "floe_cores_test.yaml";
  const auto machine_of = [&](const std::string& text) {
    std::ofstream(path) << text;
    return plan::find_machine(path.string());
  };
  EXPECT_EQ(machine_of("device: cpu\ncores: 6\n").cores, 6);
  EXPECT_EQ(machine_of("device: cpu\n").reduce_gbs, plan::find_machine("cpu").reduce_gbs);
  EXPECT_TRUE(machine_of("like: cpu\n").of_cores());
  test::expect_part(test::config_error([&] { machine_of("like: h100\ndevice: cpu\n"); }),
                    "'h100' is a gpu, but this is a cpu");
  test::expect_part(test::config_error([&] { machine_of("device: tpu\n"); }), "device");
  std::filesystem::remove(path);
}

TEST(Calibrate, DescribesThisProcessorAlone) {
  const auto world = comm::World::fake(0, 1);
  const plan::Calibration found =
      plan::calibrate(*world, {.like = "", .name = "here: #1", .rounds = 1});
  const auto path = std::filesystem::temp_directory_path() / "floe_calibrate_test.yaml";
  std::ofstream(path) << plan::to_yaml(found);
  const Machine machine = plan::find_machine(path.string());
  std::filesystem::remove(path);
  EXPECT_TRUE(machine.of_cores());
  EXPECT_EQ(machine.name, "here: #1");
  EXPECT_GT(machine.fp32_tflops, 0.001);
  EXPECT_GT(machine.memory_gbs, 0.1);
  EXPECT_GT(machine.kernel_us, 0.1);
  // One rank has nobody to talk to.
  EXPECT_EQ(machine.intra_gbs, plan::find_machine("cpu").intra_gbs);
  EXPECT_NE(plan::to_yaml(found).find("Not measured, taken from 'cpu'"), std::string::npos);
  test::expect_part(test::config_error([&] {
                      plan::calibrate(*world, {.like = "h100", .name = "", .rounds = 1});
                    }),
                    "--like 'h100' is a gpu");
}

}  // namespace
}  // namespace floe::cores_test
