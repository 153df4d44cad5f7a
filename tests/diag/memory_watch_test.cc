#include "floe/observe/diagnostics/memory_watch.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "floe/core/bytes.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/shard/plan/plan.h"
#include "tests/diag/sharded_model.h"

namespace floe::diagnostics::memory_watch_test {
namespace {

using Size = models::TransformerSize;

struct Watched {
  explicit Watched(const Size& size, shard::ShardOptions options = {},
                   const shard::Policy& policy = {.units = {"DecoderLayer"}})
      : sharded((device_memory(test::device()), size), std::move(options), policy),
        watch(*sharded.engine, {sharded.optimizer.get()}) {
    sharded.engine->add_observer(&watch);
  }
  ~Watched() { sharded.engine->remove_observer(&watch); }
  void step(std::int64_t batch, std::int64_t tokens, int micro = 1) {
    sharded.step(
        batch, tokens, [&](MemoryPoint point) { watch.mark(point); }, micro);
  }

  test::ShardedModel sharded;
  MemoryWatch watch;
};

std::string_view largest_part(const MemoryPeak& peak) { return peak.parts().front().name; }

std::int64_t sum(const MemoryPeak& peak) {
  std::int64_t bytes = 0;
  for (const auto& part : peak.parts()) bytes += part.bytes;
  return bytes;
}

void numbers_are_those_of_the_engine() {
  Watched run({.vocab = 64, .dim = 64, .layers = 3, .heads = 4, .context = 16});
  run.step(2, 16);
  run.step(2, 16);
  const auto& points = run.watch.points();
  ASSERT_EQ(points.size(), 5U);
  const char* names[] = {"batch_start", "after_forward", "after_backward", "before_optimizer_step",
                         "batch_end"};
  const auto held = run.sharded.engine->plan().held();
  for (std::size_t i = 0; i < points.size(); ++i) {
    const PointMemory& at = points[i];
    EXPECT_STREQ(name_of(at.point), names[i]);
    EXPECT_GE(at.peak.bytes, at.current_bytes) << names[i];
    EXPECT_EQ(sum(at.peak), at.peak.bytes) << names[i];
    EXPECT_EQ(at.peak.parameters, held.trainable_slices + held.frozen_slices) << names[i];
  }
  EXPECT_EQ(points[0].peak.gathered, 0);
  EXPECT_EQ(points[0].peak.activations, 0);
  EXPECT_EQ(points[0].peak.optimizer, run.sharded.optimizer->state_bytes());
  EXPECT_GT(points[1].current_bytes, points[0].current_bytes) << "activations";
  EXPECT_GE(points[2].current_bytes, points[0].current_bytes + held.gradient_slices);
  EXPECT_EQ(points[3].peak.gradients, held.gradient_slices);
  EXPECT_EQ(points[4].current_bytes, points[0].current_bytes)
      << "all that a batch took is given back";
}
TEST_RANKS(MemoryWatch, NumbersAreThoseOfTheEngineOnOneRank, 1) {
  numbers_are_those_of_the_engine();
}
TEST_RANKS(MemoryWatch, NumbersAreThoseOfTheEngineOnTwoRanks, 2) {
  numbers_are_those_of_the_engine();
}

TEST_RANKS(MemoryWatch, RepeatedPointsKeepTheirLargestValues, 1) {
  Watched run({.vocab = 64, .dim = 32, .layers = 2, .heads = 4, .context = 64});
  run.step(1, 16);
  run.watch.mark(MemoryPoint::batch_start);
  const auto pass = [&](std::int64_t tokens) {
    const at::Tensor ids = at::zeros({2, tokens}, at::kLong).to(test::device());
    const at::Tensor loss = models::next_token_loss(nn::call(run.sharded.model(), ids), ids);
    run.watch.mark(MemoryPoint::after_forward);
    loss.backward();
    run.watch.mark(MemoryPoint::after_backward);
    return run.watch.points();
  };
  const auto middle = pass(32), shorter = pass(8), longer = pass(64);
  ASSERT_EQ(longer.size(), 3U);
  for (const std::size_t point : {1, 2}) {
    EXPECT_EQ(shorter[point].peak.bytes, middle[point].peak.bytes);
    EXPECT_GE(shorter[point].current_bytes, middle[point].current_bytes);
    EXPECT_GT(longer[point].peak.bytes, middle[point].peak.bytes);
  }
  EXPECT_GT(longer[1].current_bytes, middle[1].current_bytes);
}

void a_huge_vocabulary_points_to_logits() {
  Watched run({.vocab = 20'000, .dim = 16, .layers = 2, .heads = 2, .context = 128});
  run.step(4, 128);
  run.step(4, 128);
  const PointMemory& largest = run.watch.largest();
  EXPECT_EQ(largest_part(largest.peak), "logits") << peak_hint(largest.peak);
  // Of 4 · 127 predictions, in fp32, at least the logits themselves and their gradient.
  EXPECT_GE(largest.peak.logits, 2 * 4 * 127 * 20'000 * 4);
  EXPECT_NE(run.watch.advice().find("are logits and their gradients, up to [512, 20000] at a time"),
            std::string::npos)
      << run.watch.advice();
}
TEST_RANKS(MemoryWatch, AHugeVocabularyPointsToLogits, 1) { a_huge_vocabulary_points_to_logits(); }
TEST_RANKS(MemoryWatch, AHugeVocabularyPointsToLogitsOnTwoRanks, 2) {
  a_huge_vocabulary_points_to_logits();
}

TEST_RANKS(MemoryWatch, LongSequencesPointToActivations, 2) {
  const Size size{.vocab = 40, .dim = 32, .layers = 4, .heads = 4, .context = 256};
  Watched run(size);
  run.step(8, 256);
  run.step(8, 256);
  EXPECT_EQ(largest_part(run.watch.largest().peak), "activations")
      << peak_hint(run.watch.largest().peak);
  EXPECT_NE(run.watch.advice().find("are activations, most of them in DecoderLayer: set "
                                    "strategy.activation_checkpointing: [DecoderLayer]"),
            std::string::npos)
      << run.watch.advice();
}

TEST_RANKS(MemoryWatch, CheckpointedActivationsGetOtherAdvice, 1) {
  shard::ShardOptions options;
  options.activation_checkpointing = {"DecoderLayer"};
  const Size size{.vocab = 40, .dim = 32, .layers = 2, .heads = 4, .context = 256};
  Watched run(size, options);
  run.step(16, 256);
  run.step(16, 256);
  EXPECT_EQ(largest_part(run.watch.largest().peak), "activations");
  EXPECT_NE(run.watch.advice().find("checkpointed already: use shorter sequences"),
            std::string::npos)
      << run.watch.advice();
}

TEST_RANKS(MemoryWatch, PartlyCheckpointedActivationsGetOtherAdvice, 1) {
  shard::ShardOptions options;
  options.activation_checkpointing = {"DecoderLayer"};
  options.checkpointed_share = 0.5;
  const Size size{.vocab = 40, .dim = 32, .layers = 4, .heads = 4, .context = 256};
  Watched run(size, options);
  run.step(16, 256);
  run.step(16, 256);
  EXPECT_NE(run.watch.advice().find("of which some are checkpointed: checkpoint more of them "
                                    "(strategy.activation_checkpointing, "
                                    "strategy.activations.share)"),
            std::string::npos)
      << run.watch.advice();
}

// One unit of everything, frozen: whole, it is four times what a rank holds.
TEST_RANKS(MemoryWatch, LargeUnitsPointToTheGatherPool, 4) {
  shard::ShardOptions options;
  options.trainable = {{"layers.3.norm2.*"}};
  const Size size{.vocab = 32, .dim = 128, .layers = 4, .heads = 4, .context = 8};
  Watched run(size, options, {.lone_unit_numel = 1 << 30});
  run.step(1, 2);
  run.step(1, 2);
  EXPECT_EQ(largest_part(run.watch.largest().peak), "gathered")
      << peak_hint(run.watch.largest().peak);
  EXPECT_NE(run.watch.advice().find("the pool of gathered parameters"), std::string::npos);
}

// One unit of everything, and all of it trains: with slices of S bytes, AdamW keeps 2 S, four ranks
// gather 2 S in bf16, and the whole gradient in fp32 is 4 S.
TEST_RANKS(MemoryWatch, WholeGradientsPointToGradients, 4) {
  shard::ShardOptions options;
  options.mixed_precision = {.param = at::kBFloat16, .reduce = at::kFloat};
  const Size size{.vocab = 32, .dim = 128, .layers = 4, .heads = 4, .context = 8};
  Watched run(size, options, {.lone_unit_numel = 1 << 30});
  run.step(1, 2);
  run.step(1, 2);
  const MemoryPeak& peak = run.watch.largest().peak;
  EXPECT_EQ(largest_part(peak), "gradients") << peak_hint(peak);
  EXPECT_GE(peak.gradients, run.sharded.engine->plan().groups[0].gradient_bytes());
}

// Everything trains and next to nothing is computed: state of the optimizer is two thirds of what
// stays.
TEST_RANKS(MemoryWatch, AnUpdateOfMuchPointsToTheOptimizer, 1) {
  const Size size{.vocab = 32, .dim = 128, .layers = 4, .heads = 4, .context = 8};
  Watched run(size);
  run.step(1, 2);
  run.step(1, 2);
  const auto& points = run.watch.points();
  EXPECT_EQ(largest_part(points.back().peak), "optimizer") << peak_hint(points.back().peak);
  EXPECT_GE(points.back().peak.optimizer, run.sharded.optimizer->state_bytes());
  EXPECT_EQ(points.back().peak.where, "the optimizer's update");
}

TEST(Vocabulary, IsTheLargestTable) {
  const models::Transformer model(
      {.vocab = 300, .dim = 16, .layers = 1, .heads = 2, .context = 40});
  EXPECT_EQ(find_vocabulary(model).size, 300);
  EXPECT_EQ(find_vocabulary(model).width, 16);
  EXPECT_EQ(find_vocabulary(nn::Linear(3, 4, true)).size, 0);
}

TEST(PeakHint, NamesTheLargestParts) {
  MemoryPeak peak;
  peak.bytes = 100 * kMiB;
  peak.parameters = 2 * kMiB;
  peak.gradients = 30 * kMiB;
  peak.logits = 60 * kMiB;
  peak.activations = 8 * kMiB;
  peak.where = "the backward of head";
  EXPECT_EQ(peak_hint(peak), "logits 60%, gradients 30%, activations 8%");
  EXPECT_EQ(
      peak_advice(peak, {.logits_rows = 7, .vocabulary = 9}),
      "the peak of memory is 100 MiB, in the backward of head; 60% of it are logits and their "
      "gradients, up to [7, 9] at a time: use fewer labelled tokens per batch");
}

}  // namespace
}  // namespace floe::diagnostics::memory_watch_test
