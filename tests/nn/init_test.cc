// Initial values: Philox against its published vectors, independence of how a range is split, and
// the shapes of the distributions. Seeds are fixed, so nothing here is a matter of luck.
#include "floe/nn/init.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "floe/core/philox.h"

namespace floe::nn::init_test {
namespace {

using Words = std::array<std::uint32_t, 4>;

// Philox4x32-10 with a full counter, as the paper writes it.
Words reference_philox(Words counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * counter[2];
    const auto high = [](std::uint64_t p) { return static_cast<std::uint32_t>(p >> 32); };
    const auto low = [](std::uint64_t p) { return static_cast<std::uint32_t>(p); };
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1),
               high(product0) ^ counter[3] ^ key[1], low(product0)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

// The known answers that Random123 publishes (kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(reference_philox({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(reference_philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      reference_philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));

  static_assert(Philox(0).block(0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  for (const std::uint64_t key : {0ULL, 1ULL, 0x123456789abcdef0ULL, ~0ULL})
    for (const std::uint64_t index : {0ULL, 1ULL, 0xffffffffULL, 0x100000000ULL, ~0ULL})
      EXPECT_EQ(
          Philox(key).block(index),
          reference_philox(
              {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0},
              {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}));
}

at::Tensor filled(const Init& init, std::int64_t first, std::int64_t numel,
                  const std::string& name = "w", std::uint64_t seed = 5,
                  at::ScalarType dtype = at::kFloat) {
  at::Tensor out = at::empty({numel}, at::TensorOptions().dtype(dtype));
  fill(init, seed, name, first, out);
  return out;
}

TEST(Init, AnySplitGivesTheSameNumbers) {
  constexpr std::int64_t kNumel = 40'007;  // more than one piece of parallel work
  for (const Init init : {Init::normal(0.02), Init::uniform(-3, 1), Init::constant(0.25)}) {
    const at::Tensor whole = filled(init, 0, kNumel);
    for (int world = 1; world <= 7; ++world) {
      const std::int64_t share = (kNumel + world - 1) / world;
      std::vector<at::Tensor> slices;
      for (std::int64_t begin = 0; begin < kNumel; begin += share)
        slices.push_back(filled(init, begin, std::min(share, kNumel - begin)));
      EXPECT_TRUE(at::cat(slices).equal(whole)) << world << " ranks";
    }
    for (const std::int64_t first : {1, 2, 3, 4, 5, 39'999})
      EXPECT_TRUE(filled(init, first, 7).equal(whole.narrow(0, first, 7))) << "from " << first;
  }
  EXPECT_EQ(filled(Init::normal(1), 3, 0).numel(), 0);
}

TEST(Init, ElementsFarBeyondFourBillion) {
  const std::int64_t far = (std::int64_t{1} << 40) + 3;
  const at::Tensor a = filled(Init::normal(1), far, 64);
  EXPECT_TRUE(filled(Init::normal(1), far + 30, 5).equal(a.narrow(0, 30, 5)));
  EXPECT_FALSE(a.equal(filled(Init::normal(1), 3, 64)));
  EXPECT_FALSE(a.equal(filled(Init::normal(1), far - (std::int64_t{1} << 34), 64)));
}

TEST(Init, NamesAndSeedsDecide) {
  const at::Tensor a = filled(Init::normal(1), 0, 1000);
  EXPECT_TRUE(a.equal(filled(Init::normal(1), 0, 1000)));
  for (const at::Tensor& b :
       {filled(Init::normal(1), 0, 1000, "v"), filled(Init::normal(1), 0, 1000, "ww"),
        filled(Init::normal(1), 0, 1000, ""), filled(Init::normal(1), 0, 1000, "w", 6),
        filled(Init::normal(1), 1, 1000)}) {
    EXPECT_LT((a == b).sum().item<int>(), 3);
    EXPECT_LT(std::abs((a * b).mean().item<double>()), 5 / std::sqrt(1000.0)) << "independent";
  }
}

TEST(Init, OtherDtypesAreTheSameNumbersRounded) {
  for (const Init init : {Init::normal(0.7, 0.1), Init::uniform(-1, 1), Init::constant(0.1)}) {
    const at::Tensor a = filled(init, 5, 3001);
    for (const auto dtype : {at::kBFloat16, at::kHalf})
      EXPECT_TRUE(filled(init, 5, 3001, "w", 5, dtype).equal(a.to(dtype)));
    if (init.kind != Init::Kind::constant) {
      EXPECT_TRUE(filled(init, 5, 3001, "w", 5, at::kDouble).equal(a.to(at::kDouble)));
    }
  }
  // Longer than the buffer that values of other dtypes pass through.
  constexpr std::int64_t kLong = (std::int64_t{1} << 22) + 5;
  const at::Tensor a = filled(Init::uniform(0, 1), 1, kLong);
  EXPECT_TRUE(
      filled(Init::uniform(0, 1), 1, kLong, "w", 5, at::kBFloat16).equal(a.to(at::kBFloat16)));
}

// The largest distance between the sample's distribution and the true one.
double distance(const at::Tensor& sample, const std::function<double(double)>& cumulative) {
  const at::Tensor sorted = std::get<0>(sample.to(at::kDouble).sort());
  const double* x = sorted.const_data_ptr<double>();
  const auto n = static_cast<double>(sorted.numel());
  double most = 0;
  for (std::int64_t i = 0; i < sorted.numel(); ++i) {
    const double f = cumulative(x[i]);
    most = std::max({most, std::abs(f - static_cast<double>(i) / n),
                     std::abs(f - static_cast<double>(i + 1) / n)});
  }
  return most;
}

constexpr std::int64_t kSample = 200'000;
// Kolmogorov's bound: a true sample stays below with probability 0.999.
const double kDistance = 1.95 / std::sqrt(static_cast<double>(kSample));

TEST(Init, NormalIsNormal) {
  for (const auto& [deviation, mean] :
       {std::pair(1.0, 0.0), std::pair(0.02, 0.0), std::pair(3.0, -7.0)}) {
    const at::Tensor x =
        (filled(Init::normal(deviation, mean), 0, kSample).to(at::kDouble) - mean) / deviation;
    const double n = kSample;
    EXPECT_LT(std::abs(x.mean().item<double>()), 4 / std::sqrt(n));
    EXPECT_LT(std::abs(x.var().item<double>() - 1), 4 * std::sqrt(2 / n));
    EXPECT_LT(std::abs(x.pow(3).mean().item<double>()), 4 * std::sqrt(15 / n));
    EXPECT_LT(std::abs(x.pow(4).mean().item<double>() - 3), 4 * std::sqrt(96 / n));
    EXPECT_LT(distance(x, [](double t) { return 0.5 * std::erfc(-t / std::sqrt(2.0)); }),
              kDistance);
    EXPECT_GT(x.abs().max().item<double>(), 4) << "tails";
    for (const std::int64_t lag : {1, 2, 3, 4}) {
      const auto pairs = x.narrow(0, 0, kSample - lag) * x.narrow(0, lag, kSample - lag);
      EXPECT_LT(std::abs(pairs.mean().item<double>()), 4 / std::sqrt(n)) << "neighbours at " << lag;
    }
  }
}

TEST(Init, UniformIsUniform) {
  for (const auto& [from, to] : {std::pair(0.0, 1.0), std::pair(-0.5, 0.25)}) {
    const at::Tensor x = filled(Init::uniform(from, to), 0, kSample).to(at::kDouble);
    EXPECT_GE(x.min().item<double>(), from);
    EXPECT_LE(x.max().item<double>(), to);
    const at::Tensor u = (x - from) / (to - from);
    const double n = kSample;
    EXPECT_LT(std::abs(u.mean().item<double>() - 0.5), 4 * std::sqrt(1 / (12 * n)));
    EXPECT_LT(std::abs(u.var().item<double>() - 1.0 / 12), 4 * std::sqrt(1 / (180 * n)));
    EXPECT_LT(distance(u, [](double t) { return std::clamp(t, 0.0, 1.0); }), kDistance);
  }
}

// Element 5738990 of this stream comes from a word of almost all ones.
TEST(Init, UniformStaysBelowItsEnd) {
  EXPECT_LT(filled(Init::uniform(0, 1), 5738990, 1, "top", 0).item<float>(), 1.0f);
  EXPECT_GT(filled(Init::uniform(0, 1), 5738990, 1, "top", 0).item<float>(), 0.9999f);
}

TEST(Init, FanInIsTorchsBound) {
  const at::Tensor x = filled(Init::fan_in(16), 0, 10'000);
  EXPECT_LE(x.abs().max().item<double>(), 0.25);
  EXPECT_GT(x.abs().max().item<double>(), 0.249);
  EXPECT_EQ(Init::fan_in(0).b, 1);
}

}  // namespace
}  // namespace floe::nn::init_test
