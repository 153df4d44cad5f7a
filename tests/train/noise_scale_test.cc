#include "floe/train/step/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace floe::train::noise_scale_test {
namespace {

// Gradients with a known mean and a known noise: the estimate comes to their ratio.
TEST(NoiseScale, FindsTheNoiseOfKnownGradients) {
  std::mt19937 random(3);
  constexpr int kDims = 2000, kRanks = 4;
  constexpr double kMean = 0.1, kNoise = 2.0, kSamples = 16;  // of one sample, per element
  std::normal_distribution<double> noise(0, kNoise / std::sqrt(kSamples));
  NoiseScale scale;
  for (int step = 0; step < 200; ++step) {
    double local = 0;
    std::vector<double> mean(kDims, 0.0);
    for (int rank = 0; rank < kRanks; ++rank)
      for (double& element : mean) {
        const double gradient = kMean + noise(random);
        local += gradient * gradient / kRanks;
        element += gradient / kRanks;
      }
    double global = 0;
    for (const double element : mean) global += element * element;
    scale.add(local, global, kSamples, kRanks);
  }
  const double expected = kNoise * kNoise / (kMean * kMean);
  ASSERT_TRUE(scale.value().has_value());
  EXPECT_NEAR(*scale.value() / expected, 1.0, 0.1);
}

TEST(NoiseScale, SaysNothingWithoutSeveralRanksOrTooEarly) {
  NoiseScale alone, early;
  for (int i = 0; i < 50; ++i) alone.add(2, 1, 8, 1);
  EXPECT_FALSE(alone.value().has_value());
  for (int i = 0; i < 9; ++i) early.add(3, 2, 8, 2);
  EXPECT_FALSE(early.value().has_value());
  early.add(3, 2, 8, 2);
  EXPECT_TRUE(early.value().has_value());
}

}  // namespace
}  // namespace floe::train::noise_scale_test
