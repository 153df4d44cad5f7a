// Sequences in buckets: no token lost, little padding, each direction the other's gradient.
#include "floe/nn/segments.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

namespace floe::nn::segments_test {
namespace {

at::Tensor offsets_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return at::tensor(offsets, at::kLong);
}

TEST(Segments, EveryTokenHasItsPlace) {
  at::manual_seed(4);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::int64_t> lengths;
    for (int s = 0; s < 30; ++s) lengths.push_back(at::randint(0, 300, {}).item<std::int64_t>());
    const Segments segments(offsets_of(lengths), {}, at::kCPU);
    const std::int64_t tokens = segments.num_tokens();
    const at::Tensor x = at::arange(tokens);
    EXPECT_TRUE(segments.unpad(segments.pad(x)).equal(x));
    std::set<std::int64_t> seen;
    std::int64_t places = 0;
    for (const Bucket& bucket : segments.buckets()) {
      EXPECT_EQ(bucket.first_place, places);
      places += bucket.rows * bucket.length;
      const at::Tensor rows = bucket.of(segments.pad(x));
      for (std::int64_t row = 0; row < bucket.rows; ++row) {
        const auto s = bucket.sequences[static_cast<std::size_t>(row)];
        EXPECT_TRUE(seen.insert(s).second);
        const std::int64_t length = lengths[static_cast<std::size_t>(s)];
        ASSERT_LE(length, bucket.length);
        if (bucket.length > 64) {
          EXPECT_GE(3 * length, 2 * bucket.length) << "at most a third is padding";
        } else if (bucket.length > 32) {
          EXPECT_GE(2 * length, bucket.length) << "at most a half is padding";
        }
        const std::int64_t first = rows[row][0].item<std::int64_t>();
        EXPECT_TRUE(rows[row].narrow(0, 0, length).equal(at::arange(first, first + length)));
        // Padding belongs to the same sequence, so that it is as finite as that.
        EXPECT_TRUE(rows[row].le(first + length - 1).all().item<bool>());
      }
    }
    EXPECT_EQ(places, segments.num_places());
    for (std::size_t s = 0; s < lengths.size(); ++s)
      EXPECT_EQ(seen.contains(static_cast<std::int64_t>(s)), lengths[s] > 0);
  }
}

TEST(Segments, EqualLengthsAreNotMoved) {
  const Segments segments(offsets_of({40, 40, 40}), {}, at::kCPU);
  const at::Tensor x = at::randn({120, 2});
  EXPECT_TRUE(segments.pad(x).is_same(x));
  EXPECT_TRUE(segments.unpad(x).is_same(x));
}

TEST(Segments, GradientsGoBackWithoutSums) {
  const Segments segments(offsets_of({3, 50, 0, 7}), {}, at::kCPU);
  const at::Tensor x = at::randn({60, 4}).requires_grad_();
  const at::Tensor slope = at::randn({60, 4});
  (segments.unpad(segments.pad(x) * 2) * slope).sum().backward();
  EXPECT_TRUE(x.grad().equal(slope * 2));
}

TEST(Segments, HiddenPlaces) {
  const at::Tensor attended = at::tensor({0, 1, 1, 1, 0}, at::kLong).to(at::kBool);
  const Segments segments(offsets_of({3, 2}), attended, at::kCPU);
  ASSERT_EQ(segments.buckets().size(), 1U);
  const at::Tensor hidden = segments.buckets()[0].hidden;
  EXPECT_TRUE(hidden.equal(at::tensor({1, 0, 0, 0, 1, 0}, at::kLong).to(at::kBool).view({2, 3})));
  // All attended: nothing to hide, so the fused kernels need no mask.
  EXPECT_FALSE(Segments(offsets_of({3, 2}), at::ones({5}, at::kBool), at::kCPU)
                   .buckets()[0]
                   .hidden.defined());
}

TEST(Segments, None) {
  const Segments segments(at::zeros({1}, at::kLong), {}, at::kCPU);
  EXPECT_EQ(segments.num_places(), 0);
  EXPECT_EQ(segments.pad(at::zeros({0, 3})).size(0), 0);
}

}  // namespace
}  // namespace floe::nn::segments_test
