#include <gtest/gtest.h>

#include <cmath>

#include "floe/core/error.h"
#include "floe/train/phases/phase_schedule.h"

namespace floe::train {
namespace {

PhaseConfig phase(const std::string& name, std::optional<std::int64_t> steps) {
  return {.name = name, .train = {"*"}, .steps = steps};
}

PhaseConfig waiting(const std::string& name, const UntilConfig& until,
                    std::optional<std::int64_t> steps = {}) {
  return {.name = name, .train = {"*"}, .steps = steps, .until = until};
}

// The name of the phase of each update.
std::string take(PhaseTurns& turns, int most) {
  std::string names;
  for (int i = 0; i < most && !turns.over(); ++i) {
    turns.pass_on();
    names += turns.name();
    turns.advance();
  }
  return names;
}

TEST(PhaseTurns, WithoutPhasesOneTrainsForEver) {
  PhaseTurns turns({}, false);
  EXPECT_EQ(turns.size(), 1u);
  for (int i = 0; i < 5; ++i) turns.advance();
  EXPECT_FALSE(turns.pass_on());
  EXPECT_FALSE(turns.over());
  EXPECT_EQ(turns.updates(0), 5);
  EXPECT_FALSE(turns.most_steps());
}

TEST(PhaseTurns, OnceEachInOrder) {
  PhaseTurns turns({phase("a", 2), phase("b", 3)}, false);
  EXPECT_EQ(turns.most_steps(), 5);
  EXPECT_EQ(take(turns, 100), "aabbb");
  EXPECT_TRUE(turns.over());
  EXPECT_FALSE(turns.pass_on());
  EXPECT_EQ(turns.updates(0), 2);
  EXPECT_EQ(turns.updates(1), 3);
}

TEST(PhaseTurns, TheLastMayGoOnUntilTheRunEnds) {
  PhaseTurns turns({phase("a", 2), phase("b", {})}, false);
  EXPECT_EQ(take(turns, 6), "aabbbb");
  EXPECT_FALSE(turns.over());
}

TEST(PhaseTurns, ACycleBeginsAgain) {
  PhaseTurns turns({phase("a", 1), phase("b", 2)}, true);
  EXPECT_EQ(take(turns, 8), "abbabbab");
  EXPECT_EQ(turns.cycle(), 2);
  EXPECT_EQ(turns.updates(0), 3);
  EXPECT_EQ(turns.updates(1), 5);
  EXPECT_FALSE(turns.over());
}

TEST(PhaseTurns, ATurnIsPassedOnOnce) {
  PhaseTurns turns({phase("a", 1), phase("b", 1)}, true);
  EXPECT_FALSE(turns.pass_on());
  turns.advance();
  EXPECT_EQ(turns.name(), "a");  // until it is passed on, the turn is that of the last update
  EXPECT_TRUE(turns.pass_on());
  EXPECT_EQ(turns.name(), "b");
  EXPECT_FALSE(turns.pass_on());
}

TEST(PhaseTurns, EndsWhenAMetricHasStoppedFalling) {
  PhaseTurns turns(
      {waiting("a", {.metric = "val_loss", .patience = 2, .min_delta = 0.1}), phase("b", {})},
      false);
  const auto sees = [&](double loss) {
    turns.advance();
    turns.observe({{"val_loss", loss}, {"val_loss_text", 0}});
    return turns.pass_on();
  };
  EXPECT_FALSE(sees(5.0));   // the first is what others are compared with
  EXPECT_FALSE(sees(4.95));  // not enough of a fall: once
  EXPECT_FALSE(sees(4.8));   // below 5.0 - 0.1: begins anew
  EXPECT_FALSE(sees(4.75));
  EXPECT_TRUE(sees(4.71));  // not below 4.8 - 0.1, twice in a row
  EXPECT_EQ(turns.name(), "b");
  EXPECT_EQ(turns.updates(0), 5);
}

TEST(PhaseTurns, ALossThatIsNotFiniteHasNotFallen) {
  PhaseTurns turns({waiting("a", {.patience = 2}), phase("b", {})}, false);
  turns.observe({{"val_loss", std::nan("")}});
  EXPECT_FALSE(turns.pass_on());
  turns.observe({{"val_loss", 3.0}});
  turns.observe({{"val_loss", -INFINITY}});
  EXPECT_FALSE(turns.pass_on());
  turns.observe({{"val_loss", std::nan("")}});
  EXPECT_TRUE(turns.pass_on());
}

TEST(PhaseTurns, StepsAreTheUpperBound) {
  PhaseTurns turns({waiting("a", {.patience = 3}, 2), phase("b", 1)}, false);
  EXPECT_EQ(turns.most_steps(), 3);
  EXPECT_EQ(take(turns, 10), "aab");
}

TEST(PhaseTurns, EveryTurnComparesWithItsOwnValidations) {
  PhaseTurns turns({waiting("a", {}), waiting("b", {})}, true);
  for (const char* name : {"a", "b", "a"}) {
    EXPECT_EQ(turns.name(), name);
    turns.observe({{"val_loss", 1.0}});
    EXPECT_FALSE(turns.pass_on());
    turns.observe({{"val_loss", 1.0}});
    EXPECT_TRUE(turns.pass_on());
  }
}

TEST(PhaseTurns, AMetricThatIsNotThereIsSaid) {
  PhaseTurns turns({waiting("a", {.metric = "val_loss_text"})}, false);
  EXPECT_THROW(turns.observe({{"val_loss", 1.0}}), ConfigError);
}

// Save and restore after every update, in the middle of a turn and at its end.
TEST(PhaseTurns, GoesOnWhereAnotherStood) {
  const std::vector<PhaseConfig> phases{phase("a", 2), waiting("b", {.patience = 2}, 5),
                                        phase("c", 1)};
  const auto losses = [](std::int64_t i) {
    return i % 3 == 0 ? 3.0 - 0.1 * static_cast<double>(i) : 9.0;
  };
  const auto one = [&](PhaseTurns& turns, std::int64_t i) {
    turns.pass_on();
    const std::string name = turns.name();
    turns.advance();
    turns.observe({{"val_loss", losses(i)}});
    return name;
  };
  PhaseTurns whole(phases, true);
  nlohmann::json saved = whole.save();
  for (std::int64_t i = 0; i < 40; ++i) {
    PhaseTurns again(phases, true);
    ASSERT_EQ(again.restore(nlohmann::json::parse(saved.dump())), "");
    const std::string name = one(whole, i);
    ASSERT_EQ(one(again, i), name) << i;
    ASSERT_EQ(again.save(), whole.save()) << i;
    ASSERT_EQ(again.cycle(), whole.cycle());
    saved = whole.save();
  }
  EXPECT_GT(whole.cycle(), 3);
}

TEST(PhaseTurns, ARunThatWasOverGoesOnWhenItsPhasesAreLonger) {
  PhaseTurns turns({phase("a", 1), phase("b", 2)}, false);
  take(turns, 10);
  ASSERT_TRUE(turns.over());
  PhaseTurns longer({phase("a", 1), phase("b", 3)}, false);
  longer.restore(turns.save());
  EXPECT_EQ(take(longer, 10), "b");
  PhaseTurns further({phase("a", 1), phase("b", 2), phase("c", 1)}, false);
  further.restore(turns.save());
  EXPECT_EQ(take(further, 10), "c");
}

TEST(PhaseTurns, APhaseThatIsGoneIsSaidAndTheFirstBegins) {
  PhaseTurns turns({phase("a", 1), phase("b", 2)}, false);
  take(turns, 2);
  PhaseTurns other({phase("x", 1), phase("a", 1)}, false);
  EXPECT_NE(other.restore(turns.save()).find("'b'"), std::string::npos);
  EXPECT_EQ(other.name(), "x");
  EXPECT_EQ(other.updates(1), 1);  // what is known of the others stays
}

TEST(PhaseTurns, CountsTheUpdatesOfARun) {
  const PhaseTurns once({phase("a", 3), phase("b", {})}, false);
  EXPECT_EQ(once.updates_in(10, 0), 3);
  EXPECT_EQ(once.updates_in(10, 1), 7);
  EXPECT_EQ(once.updates_in(2, 0), 2);
  EXPECT_EQ(once.updates_in(2, 1), 0);
  const PhaseTurns cycle({phase("a", 3), phase("b", 2)}, true);
  for (std::int64_t total = 0; total < 14; ++total) {
    PhaseTurns real({phase("a", 3), phase("b", 2)}, true);
    take(real, static_cast<int>(total));
    EXPECT_EQ(cycle.updates_in(total, 0), real.updates(0)) << total;
    EXPECT_EQ(cycle.updates_in(total, 1), real.updates(1)) << total;
  }
}

TEST(PhaseTurns, UpdatesThatWaitForAMetricAreUnknown) {
  const PhaseTurns once({waiting("a", {}), phase("b", 4), phase("c", {})}, false);
  EXPECT_FALSE(once.updates_in(10, 0));
  EXPECT_EQ(once.updates_in(10, 1), 4);
  EXPECT_FALSE(once.updates_in(10, 2));
  const PhaseTurns cycle({waiting("a", {}, 3), phase("b", 4)}, true);
  EXPECT_FALSE(cycle.updates_in(10, 0));
  EXPECT_FALSE(cycle.updates_in(10, 1));
}

// ---- train.stop, by the same rule ----

void observe(EarlyStop& stop, std::vector<double> losses, std::int64_t first_step = 1) {
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
}  // namespace floe::train
