// The question that strategy.auto asks, its answers, and batches of data.
#include "floe/plan/choose/choose.h"

#include <gtest/gtest.h>

#include <set>

#include "floe/core/bytes.h"
#include "floe/plan/choose/data_plan.h"
#include "tests/config/expect_error.h"
#include "tests/plan/planned.h"

namespace floe::choose_test {
namespace {

using plan::BatchPart;
using plan::BatchParts;
using test::config_error;
using test::expect_part;

plan::PlanSubject subject(const std::vector<std::string>& changes = {}) {
  std::vector<std::string> all{
      "model={type: transformer, vocab: 512, dim: 128, layers: 3, heads: 2, context: 64, "
      "adapter: 8}"};
  all.insert(all.end(), changes.begin(), changes.end());
  return plan::subject_of(test::small_config(all));
}

plan::RunPlace place(int world, std::int64_t memory = kGiB * 100) {
  return {.machine = plan::find_machine("h200"), .memory = memory, .world_size = world};
}

const plan::Passes kBatch{{{.sequences = 4, .tokens = 64}}};

TEST(Auto, AQuestionIsAllThatTheAnswerDependsOn) {
  const auto words = [](const std::vector<std::string>& changes, const plan::Passes& passes,
                        const plan::RunPlace& on) {
    return plan::question_of(subject(changes), passes, on).words;
  };
  const std::string first = words({}, kBatch, place(4));
  EXPECT_EQ(first, words({}, kBatch, place(4)));
  EXPECT_EQ(first.rfind("4 ranks on h200, 100 GiB each, batch 4x64 (", 0), 0U) << first;
  plan::RunPlace slower = place(4);
  slower.machine.inter_gbs /= 2;
  const std::set<std::string> all{first,
                                  words({}, kBatch, place(8)),
                                  words({}, kBatch, place(4, kGiB * 50)),
                                  words({}, {{{.sequences = 8, .tokens = 64}}}, place(4)),
                                  words({}, kBatch, slower),
                                  words({"strategy.prefetch=2"}, kBatch, place(4)),
                                  words({"strategy.mixed_precision.param=bf16"}, kBatch, place(4)),
                                  words({"train.optimizer.type=lion"}, kBatch, place(4)),
                                  words({"train.gradient_accumulation=2"}, kBatch, place(4)),
                                  words({"train.trainable=[\"layers.2.*\"]"}, kBatch, place(4))};
  EXPECT_EQ(all.size(), 10U);
  // What the choice decides is no part of it.
  EXPECT_EQ(first, words({"strategy.sharding=no_shard"}, kBatch, place(4)));
  // A budget of the configuration's own is.
  EXPECT_EQ(words({"strategy.auto={memory: 50GiB}"}, kBatch, place(4)),
            words({}, kBatch, place(4, kGiB * 50)));
}

TEST(Auto, TheAnswerFitsAndNeverCutsTheBatch) {
  const plan::AutoQuestion rich = plan::question_of(subject(), kBatch, place(4));
  const plan::AutoAnswer first = plan::answer(rich);
  EXPECT_NE(first.sentence.find(first.words), std::string::npos);
  EXPECT_NE(first.sentence.find(rich.words), std::string::npos);
  plan::PlanSubject chosen = rich.subject;
  chosen.strategy = first.strategy;
  const std::int64_t needed = plan::plan_step(plan::make_report(chosen), rich.search.step).needed();
  const plan::AutoAnswer poor =
      plan::answer(plan::question_of(subject(), kBatch, place(4, needed - 1)));
  EXPECT_NE(first.words, poor.words);
  EXPECT_EQ(poor.yaml.find("gradient_accumulation"), std::string::npos);
  expect_part(
      config_error([&] { plan::answer(plan::question_of(subject(), kBatch, place(4, 1000))); }),
      "strategy.auto finds nothing that fits: of 1000 B for each rank, the least needs about");
}

TEST(Auto, OnTheCpuNothingIsOffloaded) {
  plan::RunPlace cpu = place(1);
  cpu.is_cpu = true;
  EXPECT_FALSE(plan::question_of(subject(), kBatch, cpu).search.may_offload);
  EXPECT_TRUE(plan::question_of(subject(), kBatch, place(1)).search.may_offload);
}

TEST(Auto, AnAnswerBelongsToItsQuestion) {
  const plan::AutoQuestion question = plan::question_of(subject(), kBatch, place(4));
  StrategyConfig strategy;
  EXPECT_FALSE(plan::answers(strategy, question));
  strategy.automatic.emplace();
  EXPECT_FALSE(plan::answers(strategy, question));
  strategy.automatic->chosen_for = question.words;
  EXPECT_TRUE(plan::answers(strategy, question));
  EXPECT_FALSE(plan::answers(strategy, plan::question_of(subject(), kBatch, place(8))));
}

TEST(Auto, OfSeveralPassesTheNeediestIsPlanned) {
  const plan::Passes passes{{{.sequences = 2, .tokens = 64}},
                            {{.sequences = 8, .tokens = 64}},
                            {{.sequences = 4, .tokens = 64}}};
  EXPECT_EQ(plan::question_of(subject(), passes, place(2)).search.step.batch, passes[1]);
}

TEST(Auto, AStrategyWithoutAChoiceIsNoStrategy) {
  expect_part(config_error([] { plan::make_report(subject({"strategy.auto={}"})); }),
              "strategy.auto has not chosen yet");
}

// ---- the largest batch decides what fits, another what it takes ----

TEST(Search, TimesOneBatchAndFitsAnother) {
  const plan::StepSettings small{plan::find_machine("h200"), {{.sequences = 2, .tokens = 64}}};
  const BatchParts large{{.sequences = 16, .tokens = 64}};
  const auto search = [&](const BatchParts& largest, const BatchParts& timed) {
    return plan::find_best(
        subject({"world=4"}),
        {.step = {small.machine, timed}, .largest = largest, .budget = kGiB * 100});
  };
  const plan::Best both = search(large, small.batch), alone = search({}, small.batch),
                   all_large = search({}, large);
  ASSERT_FALSE(both.choices.empty());
  EXPECT_EQ(both.choices[0].step.time.seconds, alone.choices[0].step.time.seconds);
  EXPECT_EQ(both.choices[0].needed, all_large.choices[0].needed);
  EXPECT_GT(both.choices[0].needed, alone.choices[0].needed);
}

TEST(DataPlan, RowsAreOfBatchesInTheOrderOfTheirMemory) {
  plan::DataSample sample;
  for (const std::int64_t sequences : {4, 16, 8})
    sample.batches.push_back({{{.sequences = sequences, .tokens = 32, .labels = 30, .source = 0}}});
  const plan::PlanReport report = plan::make_report(subject({"world=2"}));
  const plan::Machine machine = plan::find_machine("h200");
  const plan::DataPlan data = plan::plan_data(report, machine, sample);
  EXPECT_EQ(data.worst.batch, 1);
  EXPECT_EQ(data.worst.tokens, 16 * 32);
  EXPECT_EQ(data.worst.labels, 16 * 30);
  EXPECT_DOUBLE_EQ(data.mean.tokens, 28 * 32 / 3.0);
  EXPECT_EQ(data.largest, sample.batches[1][0]);
  const plan::StepReport step = plan::plan_step(report, {machine, sample.batches[1][0]});
  EXPECT_EQ(data.worst.needed, static_cast<double>(step.needed()));
  EXPECT_EQ(data.worst.seconds, step.time.seconds);
  EXPECT_DOUBLE_EQ(data.tokens_per_second(data.worst), step.tokens_per_second());
}

}  // namespace
}  // namespace floe::choose_test
