// Schedules whose times can be worked out by hand, and collectives by their formulas.
#include "floe/plan/machine/simulate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "floe/core/error.h"
#include "floe/plan/step/step.h"
#include "floe/plan/step/worlds.h"
#include "tests/config/expect_error.h"

namespace floe::simulate_test {
namespace {

template <class Action>
void expect_refused(const Action& action, const std::string& part) {
  test::expect_part(test::config_error(action), part);
}

using comm::FakeCollective;
using plan::Machine;
using plan::Trace;
using plan::TraceStep;

// 1 GB takes a second everywhere, on 2 GPUs of a node and 2 nodes; nothing else costs anything.
Machine plain_machine() {
  Machine machine = plan::find_machine("h200");
  machine.memory_gbs = machine.host_gbs = machine.update_gbs = 1;
  machine.kernel_us = machine.issue_us = machine.step_ms = 0;
  machine.intra_us = machine.inter_us = 0;
  machine.gpus_per_node = 2;
  machine.intra_gbs = 2;  // both directions
  machine.inter_gbs = 1;
  machine.intra_share = machine.inter_share = 1;
  return machine;
}

class Schedule {
 public:
  Schedule& compute(double seconds, int stream = 0) {
    TraceStep step;
    step.bytes = 1e9 * seconds;
    return add(step, stream);
  }
  // Over the two GPUs of a node: half of the bytes reach each; or between two nodes.
  Schedule& gather(double seconds, int stream = 1, int stride = 1) {
    TraceStep step;
    step.kind = TraceStep::Kind::collective;
    step.collective = {FakeCollective::Kind::all_gather, std::llround(2e9 * seconds), 2, stride};
    step.bytes = 2e9 * seconds;
    return add(step, stream);
  }
  Schedule& record(int event, int stream) { return mark(TraceStep::Kind::record, event, stream); }
  Schedule& block(int event, int stream) { return mark(TraceStep::Kind::block, event, stream); }

  plan::StepTime simulated(const Machine& machine = plain_machine()) const {
    return plan::simulate(trace_, {0, 28, 1}, machine);
  }
  Trace& trace() { return trace_; }

 private:
  Schedule& mark(TraceStep::Kind kind, int event, int stream) {
    TraceStep step;
    step.kind = kind;
    step.event = event;
    return add(step, stream);
  }
  Schedule& add(TraceStep step, int stream) {
    step.stream = stream;
    trace_.steps.push_back(step);
    return *this;
  }
  Trace trace_;
};

TEST(Simulate, AUnitWaitsForItsGather) {
  const auto time = Schedule().gather(3).record(0, 1).block(0, 0).compute(5).simulated();
  EXPECT_DOUBLE_EQ(time.seconds, 8);
  EXPECT_DOUBLE_EQ(time.exposed, 3);
  EXPECT_DOUBLE_EQ(time.passes, 5);
  EXPECT_DOUBLE_EQ(time.intra_seconds, 3);
  EXPECT_DOUBLE_EQ(time.intra_bytes, 3e9);
  EXPECT_DOUBLE_EQ(time.inter_bytes, 0);
}

TEST(Simulate, TheNextGatherHidesBehindAUnit) {
  Schedule schedule;
  schedule.gather(1).record(0, 1).block(0, 0);  // the first unit
  schedule.gather(3).record(1, 1).compute(4);   // the second is gathered meanwhile
  schedule.block(1, 0).compute(4);
  EXPECT_DOUBLE_EQ(schedule.simulated().seconds, 9);
  EXPECT_DOUBLE_EQ(schedule.simulated().exposed, 1);
}

TEST(Simulate, AReductionThatNothingFollowsIsExposed) {
  Schedule schedule;
  schedule.compute(4).record(0, 0).block(0, 1).gather(2).record(1, 1);
  EXPECT_DOUBLE_EQ(schedule.simulated().seconds, 6);
  EXPECT_DOUBLE_EQ(schedule.simulated().exposed, 2);
}

TEST(Simulate, ALinkServesOneCollectiveAtATime) {
  EXPECT_DOUBLE_EQ(Schedule().gather(2, 1).gather(2, 2).simulated().seconds, 4);
  // One inside of the node, the other between nodes.
  const auto both = Schedule().gather(2, 1).gather(2, 2, /*stride=*/2).simulated();
  EXPECT_DOUBLE_EQ(both.seconds, 2);
  EXPECT_DOUBLE_EQ(both.inter_seconds, 2);
}

TEST(Simulate, TheHostMayBeTooSlow) {
  Machine machine = plain_machine();
  machine.issue_us = 2e6;
  const auto time = Schedule().compute(1).compute(1).compute(1).simulated(machine);
  EXPECT_DOUBLE_EQ(time.seconds, 7);
  EXPECT_DOUBLE_EQ(time.exposed, 4);
}

TEST(Simulate, EarlierPassesOfAnUpdateCount) {
  Schedule schedule;
  schedule.compute(4);
  schedule.trace().passes = 3;
  schedule.trace().earlier = Schedule().compute(2).trace().steps;
  EXPECT_DOUBLE_EQ(schedule.simulated().seconds, 8);
}

TEST(Simulate, TheUpdateReadsAndWritesWhatARankHas) {
  const auto time = plan::simulate(Trace(), {1'000'000'000, 28, 1}, plain_machine());
  EXPECT_DOUBLE_EQ(time.seconds, 32);
  EXPECT_DOUBLE_EQ(time.update_seconds, 32);
}

TEST(Collectives, ARingMovesAllButTheOwnPart) {
  Machine machine = plain_machine();
  machine.gpus_per_node = 8;
  machine.intra_us = 1e6;
  const auto seconds = [&](FakeCollective::Kind kind, std::int64_t bytes, int size) {
    return plan::collective_seconds({kind, bytes, size, 1}, machine);
  };
  using enum FakeCollective::Kind;
  EXPECT_DOUBLE_EQ(seconds(all_gather, 8'000'000'000, 8), 7 + 7);
  EXPECT_DOUBLE_EQ(seconds(reduce_scatter, 8'000'000'000, 8), 7 + 7);
  // Few bytes go through a tree of three levels, up and down; many around the ring, twice.
  EXPECT_NEAR(seconds(all_reduce, 1, 8), 6, 1e-6);
  EXPECT_DOUBLE_EQ(seconds(all_reduce, 80'000'000'000, 8), 2 * (70 + 7));
  EXPECT_DOUBLE_EQ(seconds(all_gather, 1, 1), 0);
}

TEST(Collectives, WhatEntersANodeComesOverTheNetworkOfAllOfItsRanks) {
  Machine machine = plain_machine();
  machine.gpus_per_node = 4;
  machine.intra_gbs = 2e6;
  using enum FakeCollective::Kind;
  // Two nodes of four: half of the bytes enter a node over four shares of the network.
  const FakeCollective all{all_gather, 8'000'000'000, 8, 1};
  EXPECT_TRUE(plan::leaves_node(all, machine));
  EXPECT_NEAR(plan::collective_seconds(all, machine), 1, 1e-3);
  // Copies of slices, one rank of each node.
  const FakeCollective copies{all_reduce, 1'000'000'000, 2, 4};
  EXPECT_TRUE(plan::leaves_node(copies, machine));
  EXPECT_NEAR(plan::collective_seconds(copies, machine), 1, 1e-3);
  EXPECT_FALSE(plan::leaves_node({all_gather, 1, 4, 1}, machine));
}

TEST(Machine, IsReadFromAFileThatNamesWhatItIsLike) {
  const auto path = std::filesystem::path(testing::TempDir()) / "machine.yaml";
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return plan::find_machine(path.string());
  };
  const Machine machine = read("{like: a100, name: mine, memory: 40GiB, intra_gbs: 300}");
  EXPECT_EQ(machine.name, "mine");
  EXPECT_EQ(machine.memory.bytes, std::int64_t{40} << 30);
  EXPECT_EQ(machine.bf16_tflops, plan::find_machine("a100").bf16_tflops);
  EXPECT_EQ(machine.intra_gbs, 300);
  // Products in 8 bits, which an A100 has not, are inherited like the rest.
  EXPECT_EQ(machine.fp8_tflops, 0);
  EXPECT_EQ(read("{like: a100, fp8_tflops: 300}").fp8_tflops, 300);
  EXPECT_EQ(read("{name: mine}").fp8_tflops, plan::find_machine("h200").fp8_tflops);
  EXPECT_EQ(read("{like: h100, fp8_tflops: 0}").fp8_tflops, 0);
  expect_refused([&] { read("{fp8_tflops: -1}"); }, "fp8_tflops");
  expect_refused([&] { read("{bf16_tflops: 0}"); }, "bf16_tflops");
  expect_refused([&] { read("{memory: 40GiB, bf16_tflops: -1}"); }, "bf16_tflops");
  expect_refused([&] { read("{memory_gb: 40}"); }, "memory_gb");
  expect_refused([&] { read("{like: h2000}"); }, "'like' must be one of h200");
  expect_refused([&] { plan::find_machine("h201"); }, "h200");
}

TEST(Machine, OfAGpuIsKnownByItsName) {
  EXPECT_EQ(plan::machine_of_gpu("NVIDIA H200", true).name, "h200");
  EXPECT_EQ(plan::machine_of_gpu("NVIDIA H100 80GB HBM3", true).fp8_tflops,
            plan::find_machine("h100").fp8_tflops);
  EXPECT_EQ(plan::machine_of_gpu("NVIDIA A100-SXM4-80GB", false).name, "a100");
  const Machine ada = plan::machine_of_gpu("NVIDIA L40S", true);
  EXPECT_EQ(ada.name, "NVIDIA L40S (with the rates of an A100)");
  EXPECT_EQ(ada.bf16_tflops, plan::find_machine("a100").bf16_tflops);
  EXPECT_GT(ada.fp8_tflops, ada.bf16_tflops);
  EXPECT_EQ(plan::machine_of_gpu("Tesla V100", false).fp8_tflops, 0);
}

TEST(Machine, RatesHaveUnits) {
  EXPECT_DOUBLE_EQ(plan::parse_rate("--intra", "900GB/s"), 900);
  EXPECT_DOUBLE_EQ(plan::parse_rate("--inter", "400Gb/s"), 50);
  EXPECT_DOUBLE_EQ(plan::parse_rate("--inter", "3.2TB/s"), 3200);
  for (const char* wrong : {"", "900", "900GiB/s", "GB/s", "-1GB/s", "0Gb/s", "9 x GB/s"})
    expect_refused([&] { plan::parse_rate("--inter", wrong); }, "--inter");
}

TEST(Machine, BatchesAndWorldsAreRead) {
  const auto batch = plan::parse_batch("64x32x1, 32x256x6,2x4096");
  ASSERT_EQ(batch.size(), 3U);
  EXPECT_EQ(batch[1].tokens, 256);
  EXPECT_EQ(batch[2].images, 0);
  for (const char* wrong : {"", "64", "0x32", "2x0", "axb", "2x3x4", "1x2x3x4", "2x32,"})
    expect_refused([&] { plan::parse_batch(wrong); }, "--batch");
  EXPECT_EQ(plan::parse_worlds("8..64"), (std::vector<int>{8, 16, 32, 64}));
  EXPECT_EQ(plan::parse_worlds("8..24"), (std::vector<int>{8, 16, 24}));
  EXPECT_EQ(plan::parse_worlds("3,7"), (std::vector<int>{3, 7}));
  for (const char* wrong : {"", "..", "8..", "8..4", "0..8", "a", "8,8", "8,", "1..1000000"})
    expect_refused([&] { plan::parse_worlds(wrong); }, "--worlds");
}

}  // namespace
}  // namespace floe::simulate_test
