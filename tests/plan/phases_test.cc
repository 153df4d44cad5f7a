// Plans of several sets: what each phase holds equals what the engine and its optimizers hold.
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "floe/comm/world.h"
#include "floe/models/transformer.h"
#include "floe/nn/activations/host_store.h"
#include "floe/optim/ema.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/engine.h"
#include "floe/strategy/strategy_options.h"
#include "tests/config/expect_error.h"
#include "tests/plan/planned.h"

namespace floe::phases_test {
namespace {

using shard::Rest;
using test::expect_part;

const std::string kBf16 = "++strategy.mixed_precision={param: bf16}";
const std::vector<std::string> kFirst{"layers.0.*"}, kUpper{"layers.1.*", "layers.2.*"};

plan::PlanSubject subject(const std::vector<std::string>& changes,
                          std::vector<shard::ParameterSet> sets) {
  plan::PlanSubject subject = plan::subject_of(test::small_config(changes));
  subject.trainable.reset();
  subject.sets = std::move(sets);
  return subject;
}

// Trains every phase of the subject twice, as rank 3 of 4, and compares.
void expect_counted(const plan::PlanSubject& planned) {
  const plan::PlanReport report = plan::make_report(planned);
  ASSERT_EQ(report.phases.size(), planned.sets.size());

  auto model =
      std::make_shared<models::Transformer>(plan::transformer_size_of(test::small_config().model));
  shard::ShardOptions options = strategy::shard_options_of(planned.strategy);
  // Not the last rank: its slices are padding, and what is never updated stays in the store.
  options.world = comm::World::fake(0, 4);
  options.sets = planned.sets;
  const auto engine =
      shard::fully_shard(model, strategy::policy_of(planned.strategy, *model), options);
  std::vector<std::unique_ptr<optim::AdamW>> optimizers;
  for (std::size_t set = 0; set < planned.sets.size(); ++set)
    optimizers.push_back(std::make_unique<optim::AdamW>(*engine, optim::AdamWOptions{}, set));
  std::unique_ptr<optim::Ema> ema;
  if (planned.averages) ema = std::make_unique<optim::Ema>(*engine, 0.5);

  const auto train = [&](std::size_t set) {
    engine->activate(set);
    const at::Tensor ids = at::randint(0, 10, {2, 6}, at::kLong);
    models::next_token_loss(nn::call(*model, ids), ids).backward();
    engine->agree();
    EXPECT_EQ(engine->memory().gradient_slices, report.phases[set].holdings.held.gradient_slices);
    optimizers[set]->step(1e-3);
    if (ema) ema->update();
    engine->clear_gradients();
  };
  for (std::size_t set = 0; set < planned.sets.size(); ++set) train(set);
  for (std::size_t set = 0; set < planned.sets.size(); ++set) {
    SCOPED_TRACE(planned.sets[set].name);
    train(set);
    const plan::Holdings& holdings = report.phases[set].holdings;
    const shard::MemoryInUse memory = engine->memory();
    EXPECT_EQ(memory.trainable_slices, holdings.held.trainable_slices);
    EXPECT_EQ(memory.resting_slices, holdings.held.resting_slices);
    EXPECT_EQ(memory.frozen_slices, holdings.held.frozen_slices);
    std::int64_t state = 0, stored = memory.stored_masters;
    for (const auto& optimizer : optimizers) {
      state += optimizer->state_bytes();
      stored += optimizer->stored_bytes();
    }
    if (ema) {
      state += ema->state_bytes();
      stored += ema->stored_bytes();
    }
    EXPECT_EQ(state, holdings.held.optimizer_state + holdings.held.resting_state);
    EXPECT_EQ(stored, holdings.store);
    EXPECT_EQ(stored, nn::stored_bytes());
    EXPECT_EQ(memory.trainable_slices + memory.resting_slices + memory.frozen_slices + state,
              holdings.held.between_steps());
  }
}

TEST(PlanOfPhases, EqualsWhatIsCounted) {
  for (const Rest rest : {Rest::keep, Rest::offload, Rest::drop})
    for (const char* sharding : {"full_shard", "shard_grad_op", "no_shard", "hybrid"})
      for (const bool bf16 : {false, true}) {
        SCOPED_TRACE(str(name_of(rest), " ", sharding, bf16 ? " bf16" : ""));
        std::vector<std::string> changes{str("strategy.sharding=", sharding),
                                         "strategy.hybrid_shard_size=2"};
        if (bf16) changes.push_back(kBf16);
        expect_counted(subject(changes, {{"first", kFirst, rest}, {"upper", kUpper, rest}}));
      }
}

TEST(PlanOfPhases, EqualsWhatIsCountedWhereSetsOverlapAndDiffer) {
  for (const bool offload : {false, true}) {
    std::vector<std::string> changes{kBf16, "train.ema.decay=0.5"};
    if (offload) changes.emplace_back("strategy.cpu_offload=true");
    expect_counted(subject(changes, {{"first", kFirst, Rest::offload},
                                     {"all", {"layers.*"}, Rest::drop},
                                     {"last", {"layers.2.*"}, Rest::keep}}));
  }
}

// By hand, on 4 ranks in fp32: a layer's slice has 96 elements.
TEST(PlanOfPhases, WorkedOutByHand) {
  const auto report = plan::make_report(
      subject({}, {{"first", kFirst, Rest::offload}, {"upper", kUpper, Rest::drop}}));
  EXPECT_EQ(report.trainable_numel, 3 * 257);
  const plan::PhaseReport &first = report.phases[0], &upper = report.phases[1];
  EXPECT_EQ(first.trainable_numel, 257);
  EXPECT_EQ(first.holdings.held.trainable_slices, 96 * 4);
  EXPECT_EQ(first.holdings.held.resting_slices, 2 * 96 * 4);
  EXPECT_EQ(first.holdings.held.optimizer_state, 2 * 96 * 4);
  EXPECT_EQ(first.holdings.held.resting_state, 0);
  EXPECT_EQ(first.holdings.store, 0) << "the state of 'upper' is dropped";
  EXPECT_EQ(first.moved.reduce_scatters, 1);
  EXPECT_EQ(upper.holdings.held.optimizer_state, 2 * 2 * 96 * 4);
  EXPECT_EQ(upper.holdings.store, 2 * 96 * 4);
  EXPECT_EQ(upper.moved.reduce_scatters, 2);
  EXPECT_EQ(upper.moved.gathers, first.moved.gathers - 1) << "layers.0 is not differentiated";

  EXPECT_EQ(report.plan.active_set, 1U) << "which needs most";
  EXPECT_EQ(report.holdings.held.peak(), upper.holdings.held.peak());
  EXPECT_EQ(report.unsharded_holdings.held.between_steps(), (883 + 2 * 2 * 257) * 4);
}

TEST(PlanOfPhases, TextAndJson) {
  const auto report = plan::make_report(
      subject({kBf16}, {{"first", kFirst, Rest::offload}, {"upper", kUpper, Rest::keep}}));
  const std::string text = to_text(report);
  expect_part(text, "layers.0      DecoderLayer      first");
  expect_part(text, "layers.1 … 2  2 × DecoderLayer  upper");
  expect_part(text, "Each rank holds, in phase");
  expect_part(text, "  first                         offload");
  expect_part(text, "In host memory, in phase");
  expect_part(text, "A switch of phases moves nothing between ranks.");
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 120U) << text.substr(begin, end - begin);
    begin = end + 1;
  }

  const nlohmann::ordered_json json = to_json(report);
  EXPECT_EQ(json["peak_phase"], "upper");
  ASSERT_EQ(json["phases"].size(), 2U);
  EXPECT_EQ(json["phases"][0]["name"], "first");
  EXPECT_EQ(json["phases"][0]["optimizer_state"], "offload");
  EXPECT_EQ(json["phases"][0]["holds"]["resting_state_bytes"], 2 * 2 * 128 * 4);
  EXPECT_EQ(json["phases"][1]["holds"]["host_store_bytes"], 3 * 128 * 4) << "masters and state";
  EXPECT_EQ(json["holds"]["peak_bytes"], json["phases"][1]["holds"]["peak_bytes"]);
  EXPECT_FALSE(to_json(test::planned()).contains("phases"));
}

// Where sets differ in what their backward needs, equal layers are not one row.
TEST(PlanOfPhases, BackwardByPhase) {
  const std::string text = to_text(plan::make_report(
      subject({}, {{"low", {"layers.0.*"}, Rest::keep}, {"high", {"layers.2.*"}, Rest::keep}})));
  expect_part(text, "layers.1  DecoderLayer  frozen");
  const std::size_t line = text.find("layers.1  DecoderLayer");
  EXPECT_TRUE(text.substr(line, text.find('\n', line) - line).ends_with("low")) << text;
}

}  // namespace
}  // namespace floe::phases_test
