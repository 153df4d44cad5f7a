// A rehearsed step beside the same step that really runs: collectives, memory and what is left
// behind.
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "floe/comm/world.h"
#include "floe/models/flamingo/flamingo.h"
#include "floe/models/transformer.h"
#include "floe/nn/module.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/plan/rehearsal/rehearse.h"
#include "floe/plan/step/best.h"
#include "floe/plan/step/step.h"
#include "floe/shard/engine.h"
#include "floe/strategy/strategy_options.h"
#include "tests/config/expect_error.h"
#include "tests/models/small_models.h"
#include "tests/plan/planned.h"
#include "tests/support/torch_calls.h"

namespace floe::rehearsal_test {
namespace {

template <class Action>
void expect_refused(const Action& action, const std::string& part) {
  test::expect_part(test::config_error(action), part);
}

constexpr std::int64_t kRows = 4, kTokens = 64;

plan::PlanConfig config_of(int world, const std::vector<std::string>& changes = {}) {
  std::vector<std::string> all{
      "model={type: transformer, vocab: 512, dim: 128, layers: 3, heads: 2, context: 64, "
      "adapter: 8}",
      "world=" + std::to_string(world)};
  all.insert(all.end(), changes.begin(), changes.end());
  return test::small_config(all);
}

plan::StepReport rehearsed(const plan::PlanReport& report) {
  return plan::plan_step(report, {plan::find_machine("h200"), {{kRows, kTokens, 0}}});
}

// What a step of the same plan takes on the CPU, beyond what is there before it.
std::int64_t measured_growth(const plan::PlanConfig& config) {
  const plan::PlanSubject subject = plan::subject_of(config);
  auto model = std::make_shared<models::Transformer>(plan::transformer_size_of(config.model));
  shard::ShardOptions options = strategy::shard_options_of(subject.strategy);
  options.trainable = subject.trainable;
  options.world = comm::World::fake(0, config.world_size());
  diagnostics::device_memory(at::kCPU);  // counts from here on
  const auto engine =
      shard::fully_shard(model, strategy::policy_of(subject.strategy, *model), options);
  const at::Tensor ids = at::randint(0, 512, {kRows, kTokens}, at::kLong);
  const auto step = [&] { models::next_token_loss(nn::call(*model, ids), ids).backward(); };
  step();
  engine->clear_gradients();
  diagnostics::reset_peak(at::kCPU);
  const std::int64_t before = diagnostics::device_memory(at::kCPU).current_bytes;
  step();
  return diagnostics::device_memory(at::kCPU).peak_bytes - before;
}

void expect_near(std::int64_t planned, std::int64_t measured, double share,
                 const std::string& what) {
  EXPECT_NEAR(static_cast<double>(planned), static_cast<double>(measured),
              share * static_cast<double>(measured))
      << what;
}

TEST(Rehearsal, MemoryIsWhatTheCpuCounterSees) {
  for (const int world : {1, 2, 3, 4})
    for (const char* change :
         {"strategy.prefetch=1", "train.trainable=[\"*\"]", "strategy.sharding=shard_grad_op"}) {
      const plan::PlanConfig config = config_of(world, {change});
      const plan::StepReport step = rehearsed(plan::make_report(plan::subject_of(config)));
      const std::int64_t planned = step.trace.memory.peak - step.trace.memory.before;
      expect_near(planned, measured_growth(config), 0.05, str(world, " ranks, ", change));
    }
}

TEST(Rehearsal, RecomputedUnitsKeepTheirInputsOnly) {
  const auto kept = [](const std::vector<std::string>& changes) {
    const plan::PlanReport report = plan::make_report(plan::subject_of(config_of(2, changes)));
    const plan::StepReport step = rehearsed(report);
    std::int64_t sum = 0;
    for (std::size_t u = 0; u < report.plan.units.size(); ++u)
      if (report.plan.units[u].class_name == "DecoderLayer")
        sum += step.trace.memory.kept_by_unit[u];
    return sum;
  };
  const std::int64_t whole = kept({});
  const std::int64_t inputs = kept({"strategy.activation_checkpointing=[DecoderLayer]"});
  // Its output, which is the next one's input: 4 × 64 × 128 in fp32, of each of three layers.
  EXPECT_EQ(inputs, 3 * 4 * 64 * 128 * 4);
  EXPECT_GT(whole, 8 * inputs);
}

// A module that is left alone costs what it keeps instead of its input, and nothing else.
TEST(Rehearsal, ModulesBehindTheShareKeepEverything) {
  const auto step_of = [](const std::vector<std::string>& words, bool measured) {
    std::vector<std::string> changes{"model.layers=8"};
    changes.insert(changes.end(), words.begin(), words.end());
    const plan::PlanConfig config = config_of(2, changes);
    plan::StepReport step = rehearsed(plan::make_report(plan::subject_of(config)));
    if (measured)
      expect_near(step.trace.memory.peak - step.trace.memory.before, measured_growth(config), 0.05,
                  words.back());
    return step;
  };
  const std::string all = "strategy.activation_checkpointing=[DecoderLayer]";
  std::int64_t before = step_of({all}, /*measured=*/false).trace.memory.peak;
  for (const int left_alone : {2, 4, 6}) {
    const std::string share = str("strategy.activations.share=", 1 - left_alone / 8.0);
    const plan::StepReport step = step_of({all, share}, /*measured=*/true);
    const auto& kept = step.trace.memory.kept_by_unit;
    const std::int64_t input = kept.at(0), whole = kept.at(7);
    EXPECT_GT(whole, 8 * input);
    const std::int64_t more = step.trace.memory.peak - before, most = 2 * (whole - input);
    EXPECT_LE(more, most) << share;
    // At first there was room, in which the last module computed again.
    EXPECT_GT(more, left_alone == 2 ? most / 2 : most * 9 / 10) << share;
    before = step.trace.memory.peak;
  }
  EXPECT_GT(step_of({}, /*measured=*/false).trace.memory.peak, before);
}

// What the forward of an update's last pass leaves is what that of its only one does: sums of the
// gradients of passes before it are not for its backward.
TEST(Rehearsal, GradientsOfEarlierPassesAreNotKeptForBackward) {
  for (const char* way :
       {"strategy.accumulate=reduced", "strategy.accumulate=local", "strategy.sharding=no_shard"}) {
    const auto step_of = [&](const char* passes) {
      return rehearsed(plan::make_report(
          plan::subject_of(config_of(2, {"train.trainable=[\"*\"]", way, passes}))));
    };
    const plan::StepReport one = step_of("train.gradient_accumulation=1"),
                           several = step_of("train.gradient_accumulation=3");
    EXPECT_EQ(several.trace.memory.kept_by_unit, one.trace.memory.kept_by_unit) << way;
    EXPECT_EQ(several.trace.memory.kept_outside, one.trace.memory.kept_outside) << way;
    EXPECT_GT(several.trace.memory.peak, one.trace.memory.peak) << way;
  }
}

TEST(Rehearsal, CollectivesAreThoseOfThePlan) {
  for (const char* sharding : {"full_shard", "shard_grad_op", "no_shard", "hybrid"}) {
    const plan::PlanReport report = plan::make_report(plan::subject_of(
        config_of(4, {str("strategy.sharding=", sharding), "strategy.hybrid_shard_size=2"})));
    shard::MovedBytes seen{};
    std::map<comm::FakeCollective::Kind, std::set<int>> streams;
    for (const plan::TraceStep& step : rehearsed(report).trace.steps) {
      if (step.kind != plan::TraceStep::Kind::collective) continue;
      using Kind = comm::FakeCollective::Kind;
      const std::int64_t bytes = step.collective.bytes;
      if (step.collective.kind == Kind::all_gather) seen.gathers += 1, seen.gathered += bytes;
      if (step.collective.kind == Kind::reduce_scatter)
        seen.reduce_scatters += 1, seen.reduce_scattered += bytes;
      if (step.collective.kind == Kind::all_reduce)
        seen.all_reduces += 1, seen.all_reduced += bytes;
      EXPECT_NE(step.stream, 0) << sharding;
      streams[step.collective.kind].insert(step.stream);
    }
    // Gathers and reduce-scatters in their order on one stream; gradients are summed over copies on
    // another, so that no gather waits for that.
    using Kind = comm::FakeCollective::Kind;
    if (report.moved.gathers > 0) {
      EXPECT_EQ(streams[Kind::all_gather].size(), 1U) << sharding;
      EXPECT_EQ(streams[Kind::reduce_scatter], streams[Kind::all_gather]) << sharding;
      EXPECT_NE(streams[Kind::all_reduce], streams[Kind::all_gather]) << sharding;
    }
    EXPECT_EQ(streams[Kind::all_reduce].size(), report.moved.all_reduces > 0 ? 1U : 0U) << sharding;
    EXPECT_EQ(seen.gathers, report.moved.gathers) << sharding;
    EXPECT_EQ(seen.gathered, report.moved.gathered) << sharding;
    EXPECT_EQ(seen.reduce_scatters, report.moved.reduce_scatters) << sharding;
    EXPECT_EQ(seen.reduce_scattered, report.moved.reduce_scattered) << sharding;
    EXPECT_EQ(seen.all_reduces, report.moved.all_reduces) << sharding;
    EXPECT_EQ(seen.all_reduced, report.moved.all_reduced) << sharding;
  }
}

TEST(Rehearsal, FrozenWeightsHaveNoProductsOfTheirOwn) {
  const auto products = [](const std::vector<std::string>& changes) {
    double flops = 0;
    for (const plan::TraceStep& step :
         rehearsed(plan::make_report(plan::subject_of(config_of(1, changes)))).trace.steps)
      if (step.kind == plan::TraceStep::Kind::product) flops += step.flops;
    return flops;
  };
  // Of one layer's matrices: qkv, out, up and down, and an adapter of two; of all, the head.
  const double rows = kRows * kTokens, layer = 12 * 128 * 128, adapter = 2 * 8 * 128,
               head = 512 * 128;
  // Forward and both gradients of everything, but not the embedding's.
  EXPECT_DOUBLE_EQ(products({"train.trainable=[\"*\"]"}),
                   3 * 2 * rows * (3 * (layer + adapter) + head));
  // Frozen matrices need no gradient, and below the first adapter nothing needs one.
  EXPECT_DOUBLE_EQ(products({}),
                   2 * rows * (3 * layer + 2 * layer + 3 * 3 * adapter - adapter / 2 + 2 * head));
}

TEST(Rehearsal, LeavesTheModelAsItWas) {
  const plan::PlanReport report = plan::make_report(plan::subject_of(config_of(2)));
  const plan::StepReport first = rehearsed(report), second = rehearsed(report);
  EXPECT_EQ(first.trace.memory.peak, second.trace.memory.peak);
  EXPECT_EQ(first.time.seconds, second.time.seconds);
  EXPECT_EQ(first.trace.steps.size(), second.trace.steps.size());
  for (const at::Tensor& parameter : report.subject.model->parameters()) {
    EXPECT_TRUE(parameter.is_cpu());
    EXPECT_TRUE(nn::is_deferred(parameter));
  }
}

TEST(Rehearsal, SeveralPassesReduceAsThePlanSays) {
  const auto reductions = [](const std::vector<plan::TraceStep>& steps) {
    std::int64_t count = 0;
    for (const plan::TraceStep& step : steps)
      count += step.kind == plan::TraceStep::Kind::collective &&
               step.collective.kind == comm::FakeCollective::Kind::reduce_scatter;
    return count;
  };
  for (const char* where : {"reduced", "local"}) {
    const plan::PlanReport report = plan::make_report(plan::subject_of(
        config_of(2, {"train.gradient_accumulation=3", str("strategy.accumulate=", where)})));
    const plan::Trace trace = rehearsed(report).trace;
    EXPECT_EQ(trace.passes, 3);
    EXPECT_EQ(2 * reductions(trace.earlier) + reductions(trace.steps), report.moved.reduce_scatters)
        << where;
  }
}

// Products of halves that write fp32, by the shape of what they write.
using Shapes = std::map<std::vector<std::int64_t>, int>;
class WideProducts {
 public:
  const Shapes& shapes() const { return shapes_; }

 private:
  Shapes shapes_;
  test::TorchCalls calls_{[this](const at::RecordFunction& call) {
    constexpr std::size_t kWithDtype = 4;  // left, right, dtype, out
    if (std::string_view(call.name()) == "aten::mm" && call.inputs().size() == kWithDtype)
      ++shapes_[call.inputs()[3].toTensor().sizes().vec()];
  }};
};

// See Note [Wide places].
TEST(Rehearsal, GradientsOfFlamingosProductsAreWrittenInPlace) {
  const auto has_a_place = [](const std::string& name) {
    const bool resampler = name.starts_with("perceiver");
    if (!resampler && name.find("gated_cross_attn") == std::string::npos) return false;
    // Media and latents are projected by the same weight.
    return name.ends_with("weight") && !(resampler && name.ends_with("to_kv.weight"));
  };
  const auto expect_all = [&](const nlohmann::json& lm, std::int64_t dim_head,
                              const std::vector<std::string>& checkpointed) {
    const auto model = std::make_shared<models::Flamingo>(test::small_flamingo(lm, dim_head));
    plan::RehearsedModel subject;
    subject.model = model;
    subject.policy.units = {"DecoderLayer", "GatedCrossAttention", "PerceiverResampler",
                            "ViTBlock"};
    subject.options.trainable = model->trained_by_default();
    subject.options.mixed_precision = {.param = at::kBFloat16, .reduce = at::kFloat};
    subject.options.activation_checkpointing = checkpointed;
    subject.world_size = 4;
    Shapes want;
    for (const auto& item : model->named_parameters())
      if (item->dim() == 2 && has_a_place(item.key())) ++want[item->sizes().vec()];
    ASSERT_FALSE(want.empty());
    constexpr int kSteps = 2;  // the second is what is told
    for (auto& [shape, count] : want) count *= kSteps;

    const WideProducts written;
    plan::rehearse(subject, {test::batch_of_pages({{37, 2, 3, {4, 20}}, {64, 2, 2, {1}}})});
    EXPECT_EQ(written.shapes(), want)
        << "heads of " << dim_head << (checkpointed.empty() ? "" : ", checkpointed");
  };
  for (const nlohmann::json& lm : {test::kMpt, test::kNeox})
    for (const std::int64_t dim_head : {32, 64}) {
      expect_all(lm, dim_head, {});
      expect_all(lm, dim_head, {"GatedCrossAttention", "PerceiverResampler"});
    }
}

TEST(Rehearsal, RefusesWhatItCannotRun) {
  const auto refuse = [](const std::vector<std::string>& changes, const char* part) {
    const plan::PlanReport report = plan::make_report(plan::subject_of(config_of(2, changes)));
    expect_refused([&] { rehearsed(report); }, part);
  };
  refuse({"strategy.cpu_offload=true"}, "strategy.cpu_offload");
  const plan::PlanReport report = plan::make_report(plan::subject_of(config_of(2)));
  const plan::Machine machine = plan::find_machine("h200");
  expect_refused(
      [&] {
        plan::plan_step(report, {machine, {{4, 64, 1}}});
      },
      "this model takes none");
  expect_refused(
      [&] {
        plan::plan_step(report, {machine, {{4, 64, 0}, {1, 32, 0}}});
      },
      "one length");
}

// ---- the choice ----

plan::StepSettings settings_of(std::int64_t rows = kRows) {
  plan::StepSettings settings{plan::find_machine("h200"), {{rows, kTokens, 0}}};
  settings.machine.context.bytes = 0;
  settings.machine.slack = 0;
  return settings;
}

plan::Best best_within(std::int64_t budget, int world, const std::vector<std::string>& changes = {},
                       std::int64_t rows = kRows) {
  return plan::find_best(plan::subject_of(config_of(world, changes)),
                         {.step = settings_of(rows), .budget = budget});
}

plan::StepReport step_of(int world, const std::vector<std::string>& changes,
                         std::int64_t rows = kRows) {
  return plan::plan_step(plan::make_report(plan::subject_of(config_of(world, changes))),
                         settings_of(rows));
}

// As words of the command line.
std::vector<std::string> recomputes_like(const StrategyConfig& strategy) {
  if (strategy.activation_checkpointing.empty()) return {};
  const bool products = strategy.activations.keep == ActivationsConfig::Keep::products;
  return {"strategy.activation_checkpointing=[DecoderLayer]",
          str("strategy.activations.keep=", products ? "products" : "inputs"),
          str("strategy.activations.offload=", strategy.activations.offload ? "true" : "false"),
          str("strategy.activations.share=", strategy.activations.share)};
}

TEST(Best, TakesWhatIsFastestAndFits) {
  const plan::Best rich = best_within(std::int64_t{1} << 40, 4);
  ASSERT_EQ(rich.choices.size(), 3U);
  for (std::size_t i = 1; i < rich.choices.size(); ++i)
    EXPECT_LE(rich.choices[i - 1].step.time.seconds, 1.004 * rich.choices[i].step.time.seconds);
  EXPECT_TRUE(rich.choices[0].strategy.activation_checkpointing.empty());
  // A little less than the first choice needs: another one, which fits and is not faster.
  const std::int64_t budget = rich.choices[0].step.needed() - 1;
  const plan::Best poor = best_within(budget, 4);
  ASSERT_FALSE(poor.choices.empty());
  EXPECT_LE(poor.choices[0].step.needed(), budget);
  EXPECT_GE(1.004 * poor.choices[0].step.time.seconds, rich.choices[0].step.time.seconds);
}

// Between what fits when nothing is computed twice and what fits when everything is.
TEST(Best, RecomputesNoMoreThanItMust) {
  const std::string layers = "model.layers=8";
  const plan::StepReport nothing = step_of(1, {layers});
  const plan::StepReport everything =
      step_of(1, {layers, "strategy.activation_checkpointing=[DecoderLayer]"});
  const std::int64_t budget = (nothing.needed() + everything.needed()) / 2;
  const plan::Best best = best_within(budget, 1, {layers});
  ASSERT_FALSE(best.choices.empty());
  const plan::Choice& first = best.choices[0];
  const double share = first.strategy.activations.share;
  EXPECT_EQ(first.cut, 1);
  EXPECT_TRUE(share > 0 && share < 1) << first.words;
  EXPECT_LE(first.needed, budget);
  EXPECT_LT(first.step.time.seconds, everything.time.seconds);
  EXPECT_NE(first.words.find("% recomputed"), std::string::npos) << first.words;
  EXPECT_NE(plan::yaml_of(first).find(str("share: ", share, "}")), std::string::npos);
  if (share > 0.125) {  // one eighth less would not have fitted
    StrategyConfig less = first.strategy;
    less.activations.share -= 0.125;
    std::vector<std::string> changes = recomputes_like(less);
    changes.push_back(layers);
    EXPECT_GT(step_of(1, changes).needed(), budget);
  }
}

// Of several ranks there are many ways to spread, and what nearly fits in one must not keep others
// from being tried.
TEST(Best, SharesAreTriedInEveryWayToSpread) {
  const std::string layers = "model.layers=8";
  constexpr std::int64_t kManyRows = 512;
  const plan::Best rich = best_within(std::int64_t{1} << 40, 8, {layers}, kManyRows);
  const std::int64_t most = rich.choices[0].needed, least = rich.least_needed;
  for (const double part : {0.3, 0.5, 0.7}) {
    const auto budget = least + std::llround(part * static_cast<double>(most - least));
    const plan::Best best = best_within(budget, 8, {layers}, kManyRows);
    ASSERT_EQ(best.choices.size(), 3U) << part;
    const plan::Choice& first = best.choices[0];
    EXPECT_LT(first.strategy.activations.share, 1) << first.words;
    using Words = std::vector<std::string>;
    const Words resident{"strategy.frozen.residency=resident"};
    for (const Words& spreading :
         {Words{}, Words{"strategy.sharding=shard_grad_op"}, Words{"strategy.sharding=no_shard"},
          resident, Words{"strategy.sharding=shard_grad_op", resident[0]}}) {
      Words changes{layers};
      changes.insert(changes.end(), spreading.begin(), spreading.end());
      for (const std::string& word : recomputes_like(first.strategy)) changes.push_back(word);
      const plan::StepReport other = step_of(8, changes, kManyRows);
      if (other.needed() <= budget) {
        EXPECT_LE(first.step.time.seconds, 1.005 * other.time.seconds)
            << part << ", " << join(spreading) << " instead of " << first.words;
      }
    }
  }
}

// Layers below the lowest that trains keep nothing that a share could save, and of a few layers
// several shares are the same.
TEST(Best, SharesAreOfModulesThatKeepSomething) {
  const auto first_of = [](const std::vector<std::string>& changes, double part) {
    const std::int64_t all = std::int64_t{1} << 40;
    const plan::Best rich = best_within(all, 1, changes);
    const std::int64_t most = rich.choices[0].needed;
    return best_within(
        rich.least_needed + std::llround(part * static_cast<double>(most - rich.least_needed)), 1,
        changes);
  };
  // Of 16 layers the upper 4 train.
  const plan::Best upper = first_of(
      {"model={type: transformer, vocab: 512, dim: 128, layers: 16, heads: 2, context: 64}",
       "train.trainable=[\"layers.1[2-5].*\"]"},
      0.6);
  ASSERT_FALSE(upper.choices.empty());
  const double share = upper.choices[0].strategy.activations.share;
  EXPECT_TRUE(share > 0 && share < 1) << upper.choices[0].words;

  const plan::Best few = first_of({"model.layers=3"}, 0.5);
  std::set<std::pair<std::string, std::int64_t>> different;
  for (const plan::Choice& choice : few.choices) {
    const auto& kept = choice.strategy.activations;
    different.insert(
        {str(kept.keep == ActivationsConfig::Keep::products, kept.offload),
         choice.strategy.activation_checkpointing.empty() ? 0 : shard::share_of(kept.share, 3)});
  }
  EXPECT_EQ(different.size(), few.choices.size()) << plan::to_text(few);
}

TEST(Best, CutsTheBatchOnlyWhereNothingElseHelps) {
  const std::int64_t least = best_within(std::int64_t{1} << 40, 1).least_needed;
  const plan::Best cut = best_within(least - 1, 1);
  ASSERT_FALSE(cut.choices.empty());
  EXPECT_GT(cut.choices[0].cut, 1);
  EXPECT_NE(plan::yaml_of(cut.choices[0]).find("gradient_accumulation"), std::string::npos);
  const plan::Best nothing = best_within(1000, 1);
  EXPECT_TRUE(nothing.choices.empty());
  EXPECT_NE(plan::to_text(nothing).find("Nothing fits"), std::string::npos);
}

TEST(Best, IsTheSameEveryTime) {
  const auto text = [] { return plan::to_text(best_within(std::int64_t{1} << 40, 16)); };
  const std::string first = text();
  EXPECT_EQ(first, text());
  EXPECT_NE(first.find("strategy:"), std::string::npos);
}

}  // namespace
}  // namespace floe::rehearsal_test
