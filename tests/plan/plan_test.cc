// The formulas against numbers worked out by hand. tests/shard/counts_test.cc holds the running
// engine to the same formulas.
#include <gtest/gtest.h>

#include "tests/plan/planned.h"

namespace floe::plan_test {
namespace {

using test::planned;

const std::string kEverything = "train.trainable=['*']";
const std::string kBf16 = "++strategy.mixed_precision={param: bf16}";

// Slices are multiples of 128 bytes: 32 elements in fp32. Over 4 ranks a layer's 257 elements are
// padded to 4 x 96, its frozen part's 244 to 4 x 64, an adapter's 13 to 4 x 32 and the root's 112
// to 4 x 32. In bytes, whole and on a rank:
constexpr std::int64_t kLayer = 1536, kLayerSlice = 384;
constexpr std::int64_t kFrozen = 1024, kFrozenSlice = 256;
constexpr std::int64_t kAdapter = 512, kAdapterSlice = 128;
constexpr std::int64_t kRoot = 512, kRootSlice = 128;
constexpr std::int64_t kAllSlices = 3 * kLayerSlice + kRootSlice;
constexpr std::int64_t kFrozenSlices = 3 * kFrozenSlice + kRootSlice;

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

TEST(Plan, FullShard) {
  expect_plan({kEverything}, {.trainable = kAllSlices,
                              .gradients = kAllSlices,
                              .optimizer = 2 * kAllSlices,
                              .pool = kRoot + 2 * kLayer,
                              .buffers = kRoot + 2 * kLayer,
                              // The root and the last layer once, the others twice.
                              .gathers = 6,
                              .gathered = kRoot + 5 * kLayer,
                              .scatters = 4,
                              .scattered = kRoot + 3 * kLayer});
}

TEST(Plan, ShardGradOpKeepsEverythingForBackward) {
  expect_plan({kEverything, "strategy.sharding=shard_grad_op"}, {.trainable = kAllSlices,
                                                                 .gradients = kAllSlices,
                                                                 .optimizer = 2 * kAllSlices,
                                                                 .pool = kRoot + 3 * kLayer,
                                                                 .buffers = kRoot + 2 * kLayer,
                                                                 .gathers = 4,
                                                                 .gathered = kRoot + 3 * kLayer,
                                                                 .scatters = 4,
                                                                 .scattered = kRoot + 3 * kLayer});
}

TEST(Plan, NoShardOnlyAveragesGradients) {
  expect_plan({kEverything, "strategy.sharding=no_shard"}, {.trainable = 883 * 4,
                                                            .gradients = 883 * 4,
                                                            .optimizer = 2 * 883 * 4,
                                                            .reduces = 4,
                                                            .reduced = 883 * 4});
}

// Over 2 ranks a layer is padded to 2 x 160 elements, the root to 2 x 64.
TEST(Plan, HybridReducesSlicesAcrossCopies) {
  expect_plan({kEverything, "strategy.sharding=hybrid", "strategy.hybrid_shard_size=2"},
              {.trainable = (3 * 160 + 64) * 4,
               .gradients = (3 * 160 + 64) * 4,
               .optimizer = 2 * (3 * 160 + 64) * 4,
               .pool = kRoot + 2 * 1280,
               .buffers = kRoot + 2 * 1280,
               .gathers = 6,
               .gathered = kRoot + 5 * 1280,
               .scatters = 4,
               .scattered = kRoot + 3 * 1280,
               .reduces = 4,
               .reduced = (3 * 160 + 64) * 4});
}

TEST(Plan, FrozenGroupsHaveNoGradients) {
  expect_plan({},
              {.trainable = 3 * kAdapterSlice,
               .frozen = kFrozenSlices,
               .gradients = 3 * kAdapterSlice,
               .optimizer = 2 * 3 * kAdapterSlice,
               .pool = kRoot + 2 * (kFrozen + kAdapter),
               .buffers = 2 * kAdapter,
               // Frozen: the root, layers.0 (below the lowest adapter) and layers.2 (last) once,
               // layers.1 twice. Adapters: the last once, the others twice.
               .gathers = 5 + 5,
               .gathered = kRoot + 4 * kFrozen + 5 * kAdapter,
               .scatters = 3,
               .scattered = 3 * kAdapter});
}

TEST(Plan, BelowTheLowestTrainableParameterNothingIsGatheredAgain) {
  expect_plan({"train.trainable=['layers.2.*']"}, {.trainable = kLayerSlice,
                                                   .frozen = 2 * kLayerSlice + kRootSlice,
                                                   .gradients = kLayerSlice,
                                                   .optimizer = 2 * kLayerSlice,
                                                   .pool = kRoot + 2 * kLayer,
                                                   .buffers = kLayer,
                                                   .gathers = 4,
                                                   .gathered = kRoot + 3 * kLayer,
                                                   .scatters = 1,
                                                   .scattered = kLayer});
}

TEST(Plan, NothingTrains) {
  expect_plan({"train.trainable=[]"}, {.frozen = kAllSlices,
                                       .pool = kRoot + 2 * kLayer,
                                       .gathers = 4,
                                       .gathered = kRoot + 3 * kLayer});
}

TEST(Plan, RecomputedUnitsAreGatheredAgainAsAWhole) {
  expect_plan({"strategy.activation_checkpointing=[DecoderLayer]"},
              {.trainable = 3 * kAdapterSlice,
               .frozen = kFrozenSlices,
               .gradients = 3 * kAdapterSlice,
               .optimizer = 2 * 3 * kAdapterSlice,
               .pool = kRoot + 2 * (kFrozen + kAdapter),
               .buffers = 2 * kAdapter,
               .gathers = 5 + 6,
               .gathered = kRoot + 5 * kFrozen + 5 * kAdapter,
               .scatters = 3,
               .scattered = 3 * kAdapter});
}

TEST(Plan, ResidentFrozenGroupsAreNeverGathered) {
  expect_plan({"strategy.frozen.residency=resident"}, {.trainable = 3 * kAdapterSlice,
                                                       .frozen = 844 * 4,
                                                       .gradients = 3 * kAdapterSlice,
                                                       .optimizer = 2 * 3 * kAdapterSlice,
                                                       .pool = 2 * kAdapter,
                                                       .buffers = 2 * kAdapter,
                                                       .gathers = 5,
                                                       .gathered = 5 * kAdapter,
                                                       .scatters = 3,
                                                       .scattered = 3 * kAdapter});
}

// The frozen slices take 896 bytes and a resident layer, which is not padded, 720 more.
TEST(Plan, AutoKeepsResidentWhatSavesMostWithinTheBudget) {
  const auto budget = [](std::int64_t bytes) {
    return str("strategy.frozen={residency: auto, memory_budget: ", bytes, "}");
  };
  expect_plan({budget(896 + 720)}, {.trainable = 3 * kAdapterSlice,
                                    .frozen = 896 + 720,
                                    .gradients = 3 * kAdapterSlice,
                                    .optimizer = 2 * 3 * kAdapterSlice,
                                    .pool = kRoot + kFrozen + kAdapter + kAdapter,
                                    .buffers = 2 * kAdapter,
                                    // layers.1, which would be gathered twice
                                    .gathers = 8,
                                    .gathered = kRoot + 2 * kFrozen + 5 * kAdapter,
                                    .scatters = 3,
                                    .scattered = 3 * kAdapter});
  EXPECT_EQ(planned({budget(896 + 720)}).holdings.resident, 244 * 4);
  EXPECT_EQ(planned({budget(896)}).holdings.resident, 0);
  EXPECT_EQ(planned({budget(844 * 4)}).holdings.resident, 844 * 4);
  EXPECT_EQ(planned({budget(844 * 4)}).moved.gathers, 5);
}

// bf16 halves what is gathered and what frozen slices take; masters and reductions stay fp32.
TEST(Plan, MixedPrecision) {
  // 64 elements are the least that a slice has: 128 bytes in bf16, 256 in fp32.
  expect_plan({kBf16}, {.trainable = 3 * 256,
                        .frozen = (3 * 64 + 64) * 2,
                        .gradients = 3 * 256,
                        .optimizer = 2 * 3 * 256,
                        .pool = 512 + 2 * (512 + 512),
                        .buffers = 2 * 1024,
                        .gathers = 10,
                        .gathered = 512 + 4 * 512 + 5 * 512,
                        .scatters = 3,
                        .scattered = 3 * 1024});
  const auto reduced = planned({kBf16, "strategy.mixed_precision.reduce=bf16"});
  EXPECT_EQ(reduced.moved.reduce_scattered, 3 * 512);
  EXPECT_EQ(reduced.holdings.held.gradient_slices, 3 * 256) << "added up in fp32";
}

TEST(Plan, FrozenStorageHasItsOwnType) {
  const auto report = planned({kBf16, "strategy.frozen.dtype=fp32"});
  EXPECT_EQ(report.holdings.held.frozen_slices, (3 * 64 + 64) * 4);
  EXPECT_EQ(report.moved.gathered, 512 + 4 * 512 + 5 * 512) << "gathered as it computes";
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
  const std::int64_t table = 65536 * 4, root = 128 * 4;
  EXPECT_EQ(report.trainable_numel, 65536 + 32 + 3 * 257);
  EXPECT_EQ(report.holdings.held.trainable_slices, (16384 + 32) * 4 + 3 * kLayerSlice);
  // The table stays from the embedding's forward to the head's backward; each layer comes twice.
  EXPECT_EQ(report.moved.gathers, 8);
  EXPECT_EQ(report.moved.gathered, table + root + 6 * kLayer);
  EXPECT_EQ(report.moved.reduce_scatters, 5);
  EXPECT_EQ(report.moved.reduce_scattered, table + root + 3 * kLayer);
  EXPECT_GE(report.holdings.held.pool, table + root + 2 * kLayer);
}

TEST(Plan, OffloadedSlicesAreInHostMemory) {
  const auto report = planned({"strategy.cpu_offload=true"});
  const plan::Holdings& holdings = report.holdings;
  EXPECT_EQ(holdings.host_between_steps, 3 * kAdapterSlice * 3 + kFrozenSlices);
  EXPECT_EQ(holdings.host_between_steps, holdings.held.between_steps());
  EXPECT_EQ(holdings.host_peak, 3 * kAdapterSlice * 4 + kFrozenSlices);
  EXPECT_EQ(holdings.held.peak() - holdings.host_peak,
            kRoot + 2 * (kFrozen + kAdapter) + 2 * kAdapter)
      << "gathered parameters and gradients before reduction";
  EXPECT_EQ(report.unsharded_holdings.host_peak, 0);

  const auto resident =
      planned({"strategy.cpu_offload=true", "strategy.frozen.residency=resident"});
  EXPECT_EQ(resident.holdings.host_between_steps, 3 * kAdapterSlice * 3)
      << "resident copies stay where used";
}

// Of k passes every one gathers; what is summed over copies is summed once; slices add up in one of
// two places.
TEST(Plan, PassesOfAnUpdate) {
  const std::string four = "train.gradient_accumulation=4";
  const auto moved = [&](const std::vector<std::string>& changes) {
    return planned(changes).moved;
  };
  const shard::MovedBytes one = moved({kEverything});
  const shard::MovedBytes in_slices = moved({kEverything, four, "strategy.accumulate=reduced"});
  EXPECT_EQ(in_slices.gathers, 4 * one.gathers);
  EXPECT_EQ(in_slices.gathered, 4 * one.gathered);
  EXPECT_EQ(in_slices.reduce_scatters, 4 * 4);
  EXPECT_EQ(in_slices.reduce_scattered, 4 * (kRoot + 3 * kLayer));
  const shard::MovedBytes whole = moved({kEverything, four, "strategy.accumulate=local"});
  EXPECT_EQ(whole.gathered, in_slices.gathered);
  EXPECT_EQ(whole.reduce_scatters, 4);
  EXPECT_EQ(whole.reduce_scattered, kRoot + 3 * kLayer);
  const shard::MovedBytes copies = moved({kEverything, four, "strategy.sharding=no_shard"});
  EXPECT_EQ(copies.all_reduces, 4);
  EXPECT_EQ(copies.all_reduced, 883 * 4);
  const shard::MovedBytes both =
      moved({kEverything, four, "strategy.sharding=hybrid", "strategy.hybrid_shard_size=2",
             "strategy.accumulate=reduced"});
  EXPECT_EQ(both.reduce_scatters, 4 * 4);
  EXPECT_EQ(both.all_reduces, 4);
  EXPECT_EQ(both.all_reduced, (3 * 160 + 64) * 4);

  const auto buffers = [&](const std::vector<std::string>& changes) {
    return planned(changes).holdings.held.gradient_buffers;
  };
  EXPECT_EQ(buffers({kEverything, four, "strategy.accumulate=reduced"}), kRoot + 2 * kLayer);
  EXPECT_EQ(buffers({kEverything, four, "strategy.accumulate=local"}), kRoot + 3 * kLayer);
  EXPECT_EQ(buffers({kEverything, "strategy.accumulate=local"}), kRoot + 2 * kLayer)
      << "one pass leaves nothing to add up";
}

// All that trains: 1536 bytes of gradients more on 12288. Adapters: 512 on 7040.
TEST(Plan, GradientsAddUpWholeWhereThatCostsAtMostATenth) {
  using shard::Accumulate;
  const std::string four = "train.gradient_accumulation=4";
  const auto chosen = [&](std::vector<std::string> changes) {
    changes.push_back(four);
    return planned(changes).plan.accumulates();
  };
  EXPECT_EQ(planned({kEverything}).holdings.held.peak(), 12288);
  EXPECT_EQ(chosen({kEverything}), Accumulate::reduced);
  EXPECT_EQ(planned().holdings.held.peak(), 7040);
  EXPECT_EQ(chosen({}), Accumulate::local);
  EXPECT_EQ(planned({four}).holdings.held.peak(), 7040 + 512);
  EXPECT_EQ(chosen({kBf16, "strategy.mixed_precision.reduce=bf16"}), Accumulate::reduced)
      << "sums in bf16 would lose what slices in fp32 keep";
  EXPECT_EQ(chosen({"strategy.cpu_offload=true"}), Accumulate::reduced) << "memory is short";
  EXPECT_EQ(chosen({"strategy.cuda_graphs=true"}), Accumulate::reduced);
}

// Over 2 of 4 ranks the frozen 244 elements of a layer are padded to 2 x 128, the root to 2 x 64.
TEST(Plan, FrozenSlicesInsideANode) {
  expect_plan({"strategy.frozen.sharding=node", "strategy.hybrid_shard_size=2"},
              {.trainable = 3 * kAdapterSlice,
               .frozen = (3 * 128 + 64) * 4,
               .gradients = 3 * kAdapterSlice,
               .optimizer = 2 * 3 * kAdapterSlice,
               .pool = kRoot + 2 * (kFrozen + kAdapter),
               .buffers = 2 * kAdapter,
               .gathers = 5 + 5,
               .gathered = kRoot + 4 * kFrozen + 5 * kAdapter,
               .scatters = 3,
               .scattered = 3 * kAdapter});
}

TEST(Plan, OptimizerState) {
  const auto state = [](const std::string& optimizer) {
    return planned({"train.optimizer=" + optimizer}).holdings.held.optimizer_state;
  };
  EXPECT_EQ(state("{type: adamw}"), 2 * 3 * kAdapterSlice);
  EXPECT_EQ(state("{type: sgd}"), 0);
  EXPECT_EQ(state("{type: sgd, momentum: 0.9}"), 3 * kAdapterSlice);
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
  EXPECT_EQ(planned().padding.num_groups, 7);
  EXPECT_EQ(planned().padding.numel, 3 * (12 + 115) + 16);
  EXPECT_EQ(planned({"world=1"}).padding.num_groups, 0);
  EXPECT_EQ(planned({"world=1"}).padding.numel, 0);
}

}  // namespace
}  // namespace floe::plan_test
