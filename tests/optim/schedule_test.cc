#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "floe/core/error.h"
#include "floe/optim/lr_schedule.h"
#include "floe/optim/optimizers/registry.h"
#include "floe/schema/schema.h"

namespace floe::optim::schedule_test {
namespace {

using Kind = ScheduleKind;

const Kind kConstant = lr_schedule_from_name("constant");
const Kind kLinear = lr_schedule_from_name("linear");
const Kind kCosine = lr_schedule_from_name("cosine");

// transformers.optimization: get_{constant,linear,cosine}_schedule_with_warmup's lambdas, verbatim.
double as_transformers(Kind kind, double step, double warmup, double total) {
  if (kind == kConstant) {
    if (step < warmup) return step / std::max(1.0, warmup);
    return 1.0;
  }
  if (step < warmup) return step / std::max(1.0, warmup);
  if (kind == kLinear) return std::max(0.0, (total - step) / std::max(1.0, total - warmup));
  const double num_cycles = 0.5;
  const double progress = (step - warmup) / std::max(1.0, total - warmup);
  return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * num_cycles * 2.0 * progress)));
}

TEST(LrSchedule, AsTransformersHasThem) {
  for (const Kind kind : {kConstant, kLinear, kCosine})
    for (const std::int64_t warmup : {0, 1, 10, 99, 100})
      for (const std::int64_t total : {100, 101, 5000}) {
        const LrSchedule schedule{kind, warmup, total};
        for (std::int64_t step = 0; step <= total; step += 1 + step / 50)
          EXPECT_NEAR(schedule.factor(step),
                      as_transformers(kind, static_cast<double>(step), static_cast<double>(warmup),
                                      static_cast<double>(total)),
                      1e-14)
              << "kind " << static_cast<int>(kind) << ", warmup " << warmup << ", total " << total
              << ", step " << step;
      }
}

TEST(LrSchedule, Numbers) {
  EXPECT_EQ((LrSchedule{kConstant, 5000}.factor(0)), 0);
  EXPECT_EQ((LrSchedule{kConstant, 5000}.factor(1250)), 0.25);
  EXPECT_EQ((LrSchedule{kConstant, 5000}.factor(5000)), 1);
  EXPECT_EQ((LrSchedule{kConstant, 0}.factor(0)), 1);
  EXPECT_EQ((LrSchedule{kLinear, 10, 110}.factor(10)), 1);
  EXPECT_EQ((LrSchedule{kLinear, 10, 110}.factor(60)), 0.5);
  EXPECT_EQ((LrSchedule{kLinear, 10, 110}.factor(110)), 0);
  EXPECT_EQ((LrSchedule{kLinear, 10, 110}.factor(500)), 0);
  EXPECT_EQ((LrSchedule{kCosine, 10, 110}.factor(10)), 1);
  EXPECT_NEAR((LrSchedule{kCosine, 10, 110}.factor(35)), 0.8535533905932737, 1e-15);
  EXPECT_NEAR((LrSchedule{kCosine, 10, 110}.factor(60)), 0.5, 1e-15);
  EXPECT_NEAR((LrSchedule{kCosine, 10, 110}.factor(110)), 0, 1e-15);
}

// As torch's CosineAnnealingLR has eta_min, and transformers' schedules min_lr_rate: what would
// fall to 0 falls to the last factor, in the same shape.
TEST(LrSchedule, FallsToALastFactor) {
  constexpr double kLast = 0.1;
  for (const Kind kind : {kLinear, kCosine})
    for (std::int64_t step = 0; step <= 130; ++step) {
      const LrSchedule schedule{kind, 10, 110, kLast};
      const double to_zero =
          as_transformers(kind, static_cast<double>(std::min<std::int64_t>(step, 110)), 10, 110);
      const double expected = step < 10 ? to_zero : kLast + (1 - kLast) * to_zero;
      EXPECT_NEAR(schedule.factor(step), expected, 1e-14) << "step " << step;
    }
  EXPECT_EQ((LrSchedule{kConstant, 0, 100, 0.1}.factor(100)), 1);
}

// Warm-up, stable, decay in a straight line over the last steps.
TEST(LrSchedule, StaysAndFallsAtTheEnd) {
  const Kind wsd = lr_schedule_from_name("wsd");
  const LrSchedule schedule{.kind = wsd, .warmup_steps = 10, .total_steps = 110, .decay_steps = 20};
  EXPECT_EQ(schedule.factor(0), 0);
  EXPECT_EQ(schedule.factor(5), 0.5);
  for (std::int64_t step = 10; step <= 90; ++step) EXPECT_EQ(schedule.factor(step), 1) << step;
  for (std::int64_t step = 90; step <= 110; ++step)
    EXPECT_EQ(schedule.factor(step), static_cast<double>(110 - step) / 20) << step;
  EXPECT_EQ(schedule.factor(500), 0);

  LrSchedule to_a_tenth = schedule;
  to_a_tenth.last_factor = 0.1;
  EXPECT_EQ(to_a_tenth.factor(90), 1);
  EXPECT_DOUBLE_EQ(to_a_tenth.factor(95), 0.1 + 0.9 * 0.75);
  EXPECT_DOUBLE_EQ(to_a_tenth.factor(100), 0.55);
  EXPECT_DOUBLE_EQ(to_a_tenth.factor(110), 0.1);
  EXPECT_DOUBLE_EQ(to_a_tenth.factor(500), 0.1);

  // Longer than what the warm-up leaves: it begins there, and meets 1.
  LrSchedule all = schedule;
  all.decay_steps = 1000;
  for (std::int64_t step = 0; step <= 120; ++step)
    EXPECT_EQ(all.factor(step), (LrSchedule{kLinear, 10, 110}.factor(step))) << step;
}

TEST(LrSchedule, ATenthOfTheRunDecaysUnlessItIsSaid) {
  ScheduleConfig config{.type = lr_schedule_from_name("wsd"), .warmup_steps = 0, .min_lr = 1e-5};
  EXPECT_EQ(make_schedule(config, 200, 1e-4).decay_steps, 20);
  EXPECT_EQ(make_schedule(config, 199, 1e-4).decay_steps, 19);
  EXPECT_EQ(make_schedule(config, 5, 1e-4).decay_steps, 1);
  EXPECT_DOUBLE_EQ(make_schedule(config, 200, 1e-4).factor(190), 0.1 + 0.9 * 0.5);
  config.decay_steps = 50;
  EXPECT_EQ(make_schedule(config, 200, 1e-4).decay_steps, 50);
}

// Every key that an entry of a registry says it reads is one of the block.
TEST(Registries, KeysAreThoseOfTheBlock) {
  const auto expect_known = [](const auto& types, const std::vector<std::string>& keys) {
    for (const auto& type : types)
      for (const std::string_view key : type.keys)
        EXPECT_NE(std::find(keys.begin(), keys.end(), key), keys.end()) << type.name << ": " << key;
  };
  expect_known(optimizer_types(), config::schema_of<OptimizerConfig>().keys());
  expect_known(schedule_types(), config::schema_of<ScheduleConfig>().keys());
}

TEST(LrSchedule, Names) {
  for (const auto& [name, kind] : enum_names(Kind{})) {
    EXPECT_EQ(lr_schedule_from_name(std::string(name)), kind);
    EXPECT_EQ(schedule_type(kind).name, name);
  }
  try {
    lr_schedule_from_name("polynomial");
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("'polynomial' is not one of constant, linear, cosine"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace floe::optim::schedule_test
