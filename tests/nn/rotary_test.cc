// Rotary positions: turns that depend on distance alone, on the first features of a head.
#include "floe/nn/rotary.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace floe::nn::rotary_test {
namespace {

TEST(Rotary, TurnsPairsByPositionTimesFrequency) {
  const RotarySpec spec{.dim = 4, .theta = 100};
  const at::Tensor x = at::randn({2, 1, 6}), positions = at::tensor({0, 7}, at::kLong);
  const at::Tensor turned = rotate(x, rotary_angles(spec, positions, at::kFloat));
  EXPECT_TRUE(turned[0].equal(x[0])) << "position 0 does not turn";
  for (int pair = 0; pair < 2; ++pair) {  // features pair and pair + 2
    const double angle = 7 * std::pow(100, -pair / 2.0);
    const double a = x[1][0][pair].item<double>(), b = x[1][0][pair + 2].item<double>();
    EXPECT_NEAR(turned[1][0][pair].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-5);
    EXPECT_NEAR(turned[1][0][pair + 2].item<double>(), b * std::cos(angle) + a * std::sin(angle),
                1e-5);
  }
  EXPECT_TRUE(turned.narrow(2, 4, 2).equal(x.narrow(2, 4, 2))) << "the rest of the head stays";
}

TEST(Rotary, OnlyDistanceCounts) {
  const RotarySpec spec{.dim = 16};
  const at::Tensor q = at::randn({1, 1, 16}), k = at::randn({1, 1, 16});
  const auto score = [&](std::int64_t i, std::int64_t j) {
    const auto at_place = [&](const at::Tensor& x, std::int64_t place) {
      return rotate(x, rotary_angles(spec, at::full({1}, place, at::kLong), at::kFloat));
    };
    return (at_place(q, i) * at_place(k, j)).sum().item<double>();
  };
  EXPECT_NEAR(score(9, 4), score(105, 100), 1e-4);
  EXPECT_GT(std::abs(score(9, 4) - score(9, 5)), 1e-3);
}

TEST(Rotary, LinearScalingStretchesPositions) {
  RotarySpec spec{.dim = 8};
  const auto plain = rotary_angles(spec, at::tensor({3}, at::kLong), at::kFloat);
  spec.scaling = RotaryScaling{.factor = 4};
  const auto stretched = rotary_angles(spec, at::tensor({12}, at::kLong), at::kFloat);
  EXPECT_TRUE(plain.cos.allclose(stretched.cos, 1e-5, 1e-6));
  EXPECT_TRUE(plain.sin.allclose(stretched.sin, 1e-5, 1e-6));
}

}  // namespace
}  // namespace floe::nn::rotary_test
