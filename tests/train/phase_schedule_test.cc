#include "floe/train/phases/phase_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "floe/core/error.h"

namespace floe::train::phase_schedule_test {
namespace {

PhaseConfig phase(const std::string& name, std::optional<std::int64_t> steps) {
  return {.name = name, .train = {"*"}, .steps = steps};
}

PhaseConfig waiting(const std::string& name, const UntilConfig& until,
                    std::optional<std::int64_t> steps = {}) {
  return {.name = name, .train = {"*"}, .steps = steps, .until = until};
}

// The name of the phase of each update.
std::string take(PhaseSchedule& schedule, int most) {
  std::string names;
  for (int i = 0; i < most && !schedule.over(); ++i) {
    schedule.advance();
    names += schedule.name();
    schedule.count_update();
  }
  return names;
}

TEST(PhaseSchedule, WithoutPhasesOneTrainsForEver) {
  PhaseSchedule schedule({}, false);
  EXPECT_EQ(schedule.size(), 1u);
  for (int i = 0; i < 5; ++i) schedule.count_update();
  EXPECT_FALSE(schedule.advance());
  EXPECT_FALSE(schedule.over());
  EXPECT_EQ(schedule.updates(0), 5);
  EXPECT_FALSE(schedule.most_steps());
}

TEST(PhaseSchedule, OnceEachInOrder) {
  PhaseSchedule schedule({phase("a", 2), phase("b", 3)}, false);
  EXPECT_EQ(schedule.most_steps(), 5);
  EXPECT_EQ(take(schedule, 100), "aabbb");
  EXPECT_TRUE(schedule.over());
  EXPECT_FALSE(schedule.advance());
  EXPECT_EQ(schedule.updates(0), 2);
  EXPECT_EQ(schedule.updates(1), 3);
}

TEST(PhaseSchedule, TheLastMayGoOnUntilTheRunEnds) {
  PhaseSchedule schedule({phase("a", 2), phase("b", {})}, false);
  EXPECT_EQ(take(schedule, 6), "aabbbb");
  EXPECT_FALSE(schedule.over());
}

TEST(PhaseSchedule, ACycleBeginsAgain) {
  PhaseSchedule schedule({phase("a", 1), phase("b", 2)}, true);
  EXPECT_EQ(take(schedule, 8), "abbabbab");
  EXPECT_EQ(schedule.cycle(), 2);
  EXPECT_EQ(schedule.updates(0), 3);
  EXPECT_EQ(schedule.updates(1), 5);
  EXPECT_FALSE(schedule.over());
}

TEST(PhaseSchedule, ATurnIsPassedOnOnce) {
  PhaseSchedule schedule({phase("a", 1), phase("b", 1)}, true);
  EXPECT_FALSE(schedule.advance());
  schedule.count_update();
  EXPECT_EQ(schedule.name(), "a");  // until it is passed on, the turn is that of the last update
  EXPECT_TRUE(schedule.advance());
  EXPECT_EQ(schedule.name(), "b");
  EXPECT_FALSE(schedule.advance());
}

TEST(PhaseSchedule, EndsWhenAMetricHasStoppedFalling) {
  PhaseSchedule schedule(
      {waiting("a", {.metric = "val_loss", .patience = 2, .min_delta = 0.1}), phase("b", {})},
      false);
  const auto sees = [&](double loss) {
    schedule.count_update();
    schedule.observe({{"val_loss", loss}, {"val_loss_text", 0}});
    return schedule.advance();
  };
  EXPECT_FALSE(sees(5.0));   // the first is what others are compared with
  EXPECT_FALSE(sees(4.95));  // not enough of a fall: once
  EXPECT_FALSE(sees(4.8));   // below 5.0 - 0.1: begins anew
  EXPECT_FALSE(sees(4.75));
  EXPECT_TRUE(sees(4.71));  // not below 4.8 - 0.1, twice in a row
  EXPECT_EQ(schedule.name(), "b");
  EXPECT_EQ(schedule.updates(0), 5);
}

TEST(PhaseSchedule, ALossThatIsNotFiniteHasNotFallen) {
  PhaseSchedule schedule({waiting("a", {.patience = 2}), phase("b", {})}, false);
  schedule.observe({{"val_loss", std::nan("")}});
  EXPECT_FALSE(schedule.advance());
  schedule.observe({{"val_loss", 3.0}});
  schedule.observe({{"val_loss", -INFINITY}});
  EXPECT_FALSE(schedule.advance());
  schedule.observe({{"val_loss", std::nan("")}});
  EXPECT_TRUE(schedule.advance());
}

TEST(PhaseSchedule, StepsAreTheUpperBound) {
  PhaseSchedule schedule({waiting("a", {.patience = 3}, 2), phase("b", 1)}, false);
  EXPECT_EQ(schedule.most_steps(), 3);
  EXPECT_EQ(take(schedule, 10), "aab");
}

TEST(PhaseSchedule, EveryTurnComparesWithItsOwnValidations) {
  PhaseSchedule schedule({waiting("a", {}), waiting("b", {})}, true);
  for (const char* name : {"a", "b", "a"}) {
    EXPECT_EQ(schedule.name(), name);
    schedule.observe({{"val_loss", 1.0}});
    EXPECT_FALSE(schedule.advance());
    schedule.observe({{"val_loss", 1.0}});
    EXPECT_TRUE(schedule.advance());
  }
}

TEST(PhaseSchedule, AMetricThatIsNotThereIsSaid) {
  PhaseSchedule schedule({waiting("a", {.metric = "val_loss_text"})}, false);
  EXPECT_THROW(schedule.observe({{"val_loss", 1.0}}), ConfigError);
}

// Save and restore after every update, in the middle of a turn and at its end.
TEST(PhaseSchedule, GoesOnWhereAnotherStood) {
  const std::vector<PhaseConfig> phases{phase("a", 2), waiting("b", {.patience = 2}, 5),
                                        phase("c", 1)};
  const auto losses = [](std::int64_t i) {
    return i % 3 == 0 ? 3.0 - 0.1 * static_cast<double>(i) : 9.0;
  };
  const auto one = [&](PhaseSchedule& schedule, std::int64_t i) {
    schedule.advance();
    const std::string name = schedule.name();
    schedule.count_update();
    schedule.observe({{"val_loss", losses(i)}});
    return name;
  };
  PhaseSchedule whole(phases, true);
  nlohmann::json saved = whole.save();
  for (std::int64_t i = 0; i < 40; ++i) {
    PhaseSchedule again(phases, true);
    ASSERT_EQ(again.restore(nlohmann::json::parse(saved.dump())), "");
    const std::string name = one(whole, i);
    ASSERT_EQ(one(again, i), name) << i;
    ASSERT_EQ(again.save(), whole.save()) << i;
    ASSERT_EQ(again.cycle(), whole.cycle());
    saved = whole.save();
  }
  EXPECT_GT(whole.cycle(), 3);
}

TEST(PhaseSchedule, ARunThatWasOverGoesOnWhenItsPhasesAreLonger) {
  PhaseSchedule schedule({phase("a", 1), phase("b", 2)}, false);
  take(schedule, 10);
  ASSERT_TRUE(schedule.over());
  PhaseSchedule longer({phase("a", 1), phase("b", 3)}, false);
  longer.restore(schedule.save());
  EXPECT_EQ(take(longer, 10), "b");
  PhaseSchedule further({phase("a", 1), phase("b", 2), phase("c", 1)}, false);
  further.restore(schedule.save());
  EXPECT_EQ(take(further, 10), "c");
}

TEST(PhaseSchedule, APhaseThatIsGoneIsSaidAndTheFirstBegins) {
  PhaseSchedule schedule({phase("a", 1), phase("b", 2)}, false);
  take(schedule, 2);
  PhaseSchedule other({phase("x", 1), phase("a", 1)}, false);
  EXPECT_NE(other.restore(schedule.save()).find("'b'"), std::string::npos);
  EXPECT_EQ(other.name(), "x");
  EXPECT_EQ(other.updates(1), 1);  // what is known of the others stays
}

TEST(PhaseSchedule, CountsTheUpdatesOfARun) {
  const PhaseSchedule once({phase("a", 3), phase("b", {})}, false);
  EXPECT_EQ(once.updates_in(10, 0), 3);
  EXPECT_EQ(once.updates_in(10, 1), 7);
  EXPECT_EQ(once.updates_in(2, 0), 2);
  EXPECT_EQ(once.updates_in(2, 1), 0);
  const PhaseSchedule cycle({phase("a", 3), phase("b", 2)}, true);
  for (std::int64_t total = 0; total < 14; ++total) {
    PhaseSchedule real({phase("a", 3), phase("b", 2)}, true);
    take(real, static_cast<int>(total));
    EXPECT_EQ(cycle.updates_in(total, 0), real.updates(0)) << total;
    EXPECT_EQ(cycle.updates_in(total, 1), real.updates(1)) << total;
  }
}

TEST(PhaseSchedule, UpdatesThatWaitForAMetricAreUnknown) {
  const PhaseSchedule once({waiting("a", {}), phase("b", 4), phase("c", {})}, false);
  EXPECT_FALSE(once.updates_in(10, 0));
  EXPECT_EQ(once.updates_in(10, 1), 4);
  EXPECT_FALSE(once.updates_in(10, 2));
  const PhaseSchedule cycle({waiting("a", {}, 3), phase("b", 4)}, true);
  EXPECT_FALSE(cycle.updates_in(10, 0));
  EXPECT_FALSE(cycle.updates_in(10, 1));
}

// ---- train.stop, by the same rule ----

void observe(EarlyStop& stop, const std::vector<double>& losses, std::int64_t first_step = 1) {
  for (const double loss : losses) stop.observe(first_step++, {{"val_loss", loss}, {"other", 0.0}});
}

TEST(EarlyStop, WhenAMetricNoLongerFalls) {
  EarlyStop never(std::nullopt);
  observe(never, {1, 2, 3});
  EXPECT_FALSE(never.reached());
  EXPECT_TRUE(never.save().is_null());

  EarlyStop stop(UntilConfig{.patience = 2, .min_delta = 0.1});
  observe(stop, {5, 4, 3.95, NAN});
  EXPECT_TRUE(stop.reached()) << "3.95 is no fall by more than 0.1, and NaN is none";
  EXPECT_EQ(stop.reason(),
            "val_loss has not fallen by more than 0.1 for 2 validations (4 after step 2 was the "
            "lowest)");
  observe(stop, {3.8}, 5);
  EXPECT_FALSE(stop.reached());
}

TEST(EarlyStop, GoesOnFromACheckpoint) {
  EarlyStop first(UntilConfig{.patience = 3});
  observe(first, {3, 4, 5});
  EarlyStop second(UntilConfig{.patience = 3});
  second.restore(first.save());
  EXPECT_FALSE(second.reached());
  observe(second, {3.5}, 4);
  EXPECT_TRUE(second.reached());
  EXPECT_EQ(second.reason(),
            "val_loss has not fallen for 3 validations (3 after step 1 was the lowest)");

  EarlyStop patient(UntilConfig{.patience = 5});
  patient.restore(second.save());
  EXPECT_FALSE(patient.reached());
  EarlyStop other(UntilConfig{.metric = "other", .patience = 1});
  other.restore(second.save());
  EXPECT_FALSE(other.reached()) << "what was counted was another metric";
}

}  // namespace
}  // namespace floe::train::phase_schedule_test
