#include "floe/train/step/loss_scale.h"

#include <gtest/gtest.h>

namespace floe::train::loss_scale_test {
namespace {

TEST(LossScale, HalvesAfterAnOverflowAndDoublesAfterManyGoodSteps) {
  LossScale scale(1024);
  scale.update(false);
  EXPECT_EQ(scale.value(), 512);
  for (int i = 0; i < 1999; ++i) scale.update(true);
  EXPECT_EQ(scale.value(), 512);
  scale.update(true);
  EXPECT_EQ(scale.value(), 1024);
}

TEST(LossScale, AnOverflowBeginsTheCountAnew) {
  LossScale scale(1024);
  for (int i = 0; i < 1999; ++i) scale.update(true);
  scale.update(false);
  scale.update(true);
  EXPECT_EQ(scale.value(), 512);
  EXPECT_EQ(scale.good_steps(), 1);
}

TEST(LossScale, NeverFallsBelowOne) {
  LossScale scale(2);
  for (int i = 0; i < 10; ++i) scale.update(false);
  EXPECT_EQ(scale.value(), 1);
}

TEST(LossScale, WithoutOneNothingChanges) {
  LossScale scale(0);
  scale.update(false);
  scale.restore(64, 3);
  EXPECT_EQ(scale.value(), 1);
  EXPECT_FALSE(scale.active());
}

TEST(LossScale, GoesOnWhereAnotherStood) {
  LossScale scale(1024);
  scale.restore(8, 1999);
  scale.update(true);
  EXPECT_EQ(scale.value(), 16);
}

}  // namespace
}  // namespace floe::train::loss_scale_test
