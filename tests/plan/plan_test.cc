// The formulas against numbers worked out by hand. tests/shard/counts_test.cc holds the running
// engine to the same formulas.
#include <gtest/gtest.h>

#include "tests/plan/planned.h"

namespace floe::plan_test {
namespace {

using test::planned;

const std::string kEverything = "train.trainable=['*']";
const std::string kBf16 = "++strategy.mixed_precision={param: bf16}";

struct Expected {
  std::int64_t trainable = 0, frozen = 0, gradients = 0, optimizer = 0, pool = 0, buffers = 0;
  std::int64_t gathers = 0, gathered = 0, scatters = 0, scattered = 0, reduces = 0, reduced = 0;
};

void expect_plan(const std::vector<std::string>& changes, const Expected& expected) {
  SCOPED_TRACE(join(changes));
  const plan::PlanReport report = planned(changes);
  const shard::HeldBytes& held = report.holdings.held;
  EXPECT_EQ(held.trainable_slices, expected.trainable);
  EXPECT_EQ(held.frozen_slices, expected.frozen);
  EXPECT_EQ(held.gradient_slices, expected.gradients);
  EXPECT_EQ(held.optimizer_state, expected.optimizer);
  EXPECT_EQ(held.pool, expected.pool);
  EXPECT_EQ(held.gradient_buffers, expected.buffers);
  const shard::MovedBytes& moved = report.moved;
  EXPECT_EQ(moved.gathers, expected.gathers);
  EXPECT_EQ(moved.gathered, expected.gathered);
  EXPECT_EQ(moved.reduce_scatters, expected.scatters);
  EXPECT_EQ(moved.reduce_scattered, expected.scattered);
  EXPECT_EQ(moved.all_reduces, expected.reduces);
  EXPECT_EQ(moved.all_reduced, expected.reduced);
}

// A layer's 257 elements are padded to 260 for 4 ranks: 1040 bytes whole, 65 elements per rank.
TEST(Plan, FullShard) {
  expect_plan({kEverything}, {.trainable = (3 * 65 + 28) * 4,
                              .gradients = (3 * 65 + 28) * 4,
                              .optimizer = 2 * (3 * 65 + 28) * 4,
                              .pool = 448 + 2 * 1040,
                              .buffers = 448 + 2 * 1040,
                              // The root and the last layer once, the others twice.
                              .gathers = 6,
                              .gathered = 448 + 5 * 1040,
                              .scatters = 4,
                              .scattered = 448 + 3 * 1040});
}

TEST(Plan, ShardGradOpKeepsEverythingForBackward) {
  expect_plan({kEverything, "strategy.sharding=shard_grad_op"}, {.trainable = (3 * 65 + 28) * 4,
                                                                 .gradients = (3 * 65 + 28) * 4,
                                                                 .optimizer = 2 * (3 * 65 + 28) * 4,
                                                                 .pool = 448 + 3 * 1040,
                                                                 .buffers = 448 + 2 * 1040,
                                                                 .gathers = 4,
                                                                 .gathered = 448 + 3 * 1040,
                                                                 .scatters = 4,
                                                                 .scattered = 448 + 3 * 1040});
}

TEST(Plan, NoShardOnlyAveragesGradients) {
  expect_plan({kEverything, "strategy.sharding=no_shard"}, {.trainable = 883 * 4,
                                                            .gradients = 883 * 4,
                                                            .optimizer = 2 * 883 * 4,
                                                            .reduces = 4,
                                                            .reduced = 883 * 4});
}

// Over 2 ranks a layer is padded to 258 elements, 129 per rank.
TEST(Plan, HybridReducesSlicesAcrossCopies) {
  expect_plan({kEverything, "strategy.sharding=hybrid", "strategy.hybrid_shard_size=2"},
              {.trainable = (3 * 129 + 56) * 4,
               .gradients = (3 * 129 + 56) * 4,
               .optimizer = 2 * (3 * 129 + 56) * 4,
               .pool = 448 + 2 * 1032,
               .buffers = 448 + 2 * 1032,
               .gathers = 6,
               .gathered = 448 + 5 * 1032,
               .scatters = 4,
               .scattered = 448 + 3 * 1032,
               .reduces = 4,
               .reduced = (3 * 129 + 56) * 4});
}

// An adapter's 13 elements are padded to 16, 4 per rank; the frozen 244 divide evenly.
TEST(Plan, FrozenGroupsHaveNoGradients) {
  expect_plan({},
              {.trainable = 3 * 16,
               .frozen = (3 * 61 + 28) * 4,
               .gradients = 3 * 16,
               .optimizer = 2 * 3 * 16,
               .pool = 448 + 2 * (976 + 64),
               .buffers = 2 * 64,
               // Frozen: the root, layers.0 (below the lowest adapter) and layers.2 (last) once,
               // layers.1 twice. Adapters: the last once, the others twice.
               .gathers = 5 + 5,
               .gathered = 448 + 4 * 976 + 5 * 64,
               .scatters = 3,
               .scattered = 3 * 64});
}

TEST(Plan, BelowTheLowestTrainableParameterNothingIsGatheredAgain) {
  expect_plan({"train.trainable=['layers.2.*']"}, {.trainable = 65 * 4,
                                                   .frozen = (2 * 65 + 28) * 4,
                                                   .gradients = 65 * 4,
                                                   .optimizer = 2 * 65 * 4,
                                                   .pool = 448 + 2 * 1040,
                                                   .buffers = 1040,
                                                   .gathers = 4,
                                                   .gathered = 448 + 3 * 1040,
                                                   .scatters = 1,
                                                   .scattered = 1040});
}

TEST(Plan, NothingTrains) {
  expect_plan({"train.trainable=[]"}, {.frozen = (3 * 65 + 28) * 4,
                                       .pool = 448 + 2 * 1040,
                                       .gathers = 4,
                                       .gathered = 448 + 3 * 1040});
}

TEST(Plan, RecomputedUnitsAreGatheredAgainAsAWhole) {
  expect_plan({"strategy.activation_checkpointing=[DecoderLayer]"},
              {.trainable = 3 * 16,
               .frozen = (3 * 61 + 28) * 4,
               .gradients = 3 * 16,
               .optimizer = 2 * 3 * 16,
               .pool = 448 + 2 * (976 + 64),
               .buffers = 2 * 64,
               .gathers = 5 + 6,
               .gathered = 448 + 5 * 976 + 5 * 64,
               .scatters = 3,
               .scattered = 3 * 64});
}

TEST(Plan, ResidentFrozenGroupsAreNeverGathered) {
  expect_plan({"strategy.frozen.residency=resident"}, {.trainable = 3 * 16,
                                                       .frozen = 844 * 4,
                                                       .gradients = 3 * 16,
                                                       .optimizer = 2 * 3 * 16,
                                                       .pool = 2 * 64,
                                                       .buffers = 2 * 64,
                                                       .gathers = 5,
                                                       .gathered = 5 * 64,
                                                       .scatters = 3,
                                                       .scattered = 3 * 64});
}

// The frozen slices take 844 bytes and a resident layer 732 more.
TEST(Plan, AutoKeepsResidentWhatSavesMostWithinTheBudget) {
  const auto budget = [](std::int64_t bytes) {
    return str("strategy.frozen={residency: auto, memory_budget: ", bytes, "}");
  };
  expect_plan({budget(844 + 732)}, {.trainable = 3 * 16,
                                    .frozen = 844 + 732,
                                    .gradients = 3 * 16,
                                    .optimizer = 2 * 3 * 16,
                                    .pool = 448 + 976 + 64 + 64,
                                    .buffers = 2 * 64,
                                    // layers.1, which would be gathered twice
                                    .gathers = 8,
                                    .gathered = 448 + 2 * 976 + 5 * 64,
                                    .scatters = 3,
                                    .scattered = 3 * 64});
  EXPECT_EQ(planned({budget(844 + 732)}).holdings.resident, 976);
  EXPECT_EQ(planned({budget(844)}).holdings.resident, 0);
  EXPECT_EQ(planned({budget(844 * 4)}).holdings.resident, 844 * 4);
  EXPECT_EQ(planned({budget(844 * 4)}).moved.gathers, 5);
}

// bf16 halves what is gathered and what frozen slices take; masters and reductions stay fp32.
TEST(Plan, MixedPrecision) {
  expect_plan({kBf16}, {.trainable = 3 * 16,
                        .frozen = (3 * 61 + 28) * 2,
                        .gradients = 3 * 16,
                        .optimizer = 2 * 3 * 16,
                        .pool = 224 + 2 * (488 + 32),
                        .buffers = 2 * 64,
                        .gathers = 10,
                        .gathered = 224 + 4 * 488 + 5 * 32,
                        .scatters = 3,
                        .scattered = 3 * 64});
  const auto reduced = planned({kBf16, "strategy.mixed_precision.reduce=bf16"});
  EXPECT_EQ(reduced.moved.reduce_scattered, 3 * 32);
  EXPECT_EQ(reduced.holdings.held.gradient_slices, 3 * 16) << "added up in fp32";
}

TEST(Plan, FrozenStorageHasItsOwnType) {
  const auto report = planned({kBf16, "strategy.frozen.dtype=fp32"});
  EXPECT_EQ(report.holdings.held.frozen_slices, (3 * 61 + 28) * 4);
  EXPECT_EQ(report.moved.gathered, 224 + 4 * 488 + 5 * 32) << "gathered as it computes";
}

// Whole masters must be cast to compute: two copies of adapters at a time, nothing moves.
TEST(Plan, NoShardInMixedPrecisionCasts) {
  expect_plan({kBf16, "strategy.sharding=no_shard"}, {.trainable = 39 * 4,
                                                      .frozen = 844 * 2,
                                                      .gradients = 39 * 4,
                                                      .optimizer = 2 * 39 * 4,
                                                      .pool = 2 * 26,
                                                      .reduces = 3,
                                                      .reduced = 39 * 4});
}

// 16384 rows make the embedding a unit of its own, and the head uses the same weight.
TEST(Plan, TiedWeightsCountAndMoveOnce) {
  const auto report = planned({kEverything, "model.vocab=16384", "model.tied=true"});
  const std::int64_t table = 65536 * 4, root = 32 * 4;
  EXPECT_EQ(report.trainable_numel, 65536 + 32 + 3 * 257);
  EXPECT_EQ(report.holdings.held.trainable_slices, (16384 + 8 + 3 * 65) * 4);
  // The table stays from the embedding's forward to the head's backward; each layer comes twice.
  EXPECT_EQ(report.moved.gathers, 8);
  EXPECT_EQ(report.moved.gathered, table + root + 6 * 1040);
  EXPECT_EQ(report.moved.reduce_scatters, 5);
  EXPECT_EQ(report.moved.reduce_scattered, table + root + 3 * 1040);
  EXPECT_GE(report.holdings.held.pool, table + root + 2 * 1040);
}

TEST(Plan, OffloadedSlicesAreInHostMemory) {
  const auto report = planned({"strategy.cpu_offload=true"});
  const plan::Holdings& holdings = report.holdings;
  EXPECT_EQ(holdings.host_between_steps, 3 * 16 * 3 + 844);
  EXPECT_EQ(holdings.host_between_steps, holdings.held.between_steps());
  EXPECT_EQ(holdings.host_peak, 3 * 16 * 4 + 844);
  EXPECT_EQ(holdings.held.peak() - holdings.host_peak, 448 + 2 * (976 + 64) + 2 * 64)
      << "gathered parameters and gradients before reduction";
  EXPECT_EQ(report.unsharded_holdings.host_peak, 0);

  const auto resident =
      planned({"strategy.cpu_offload=true", "strategy.frozen.residency=resident"});
  EXPECT_EQ(resident.holdings.host_between_steps, 3 * 16 * 3) << "resident copies stay where used";
}

TEST(Plan, OptimizerState) {
  const auto state = [](const std::string& optimizer) {
    return planned({"train.optimizer=" + optimizer}).holdings.held.optimizer_state;
  };
  EXPECT_EQ(state("{type: adamw}"), 2 * 3 * 16);
  EXPECT_EQ(state("{type: sgd}"), 0);
  EXPECT_EQ(state("{type: sgd, momentum: 0.9}"), 3 * 16);
}

TEST(Plan, OneRankMovesNothing) {
  expect_plan({kEverything, "world=1"},
              {.trainable = 883 * 4, .gradients = 883 * 4, .optimizer = 2 * 883 * 4});
}

TEST(Plan, UnshardedIsEveryRankWithEverything) {
  const auto report = planned({"strategy.frozen.residency=resident"});
  const shard::HeldBytes& whole = report.unsharded_holdings.held;
  EXPECT_EQ(whole.between_steps(), 844 * 4 + 3 * 39 * 4);
  EXPECT_EQ(whole.peak(), 844 * 4 + 4 * 39 * 4);
  EXPECT_EQ(report.unsharded_moved.all_reduces, 3);
  EXPECT_EQ(report.unsharded_moved.all_reduced, 39 * 4);
  EXPECT_EQ(report.unsharded_moved.gathers, 0);
}

TEST(Plan, PaddingIsCounted) {
  EXPECT_EQ(planned().padding.num_groups, 3);
  EXPECT_EQ(planned().padding.numel, 3 * 3);
  EXPECT_EQ(planned({"world=1"}).padding.num_groups, 0);
  EXPECT_EQ(planned({"world=1"}).padding.numel, 0);
}

}  // namespace
}  // namespace floe::plan_test
