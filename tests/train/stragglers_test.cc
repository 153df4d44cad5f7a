// Ranks that hold the others up: what travels, and who is named when.
#include "floe/train/step/stragglers.h"

#include <gtest/gtest.h>

#include "floe/core/str.h"

namespace floe::train::stragglers_test {
namespace {

std::string name(int rank) { return str("rank ", rank, " on h", rank / 2); }

// What is said in so many steps of `step_s` each.
std::vector<std::string> said(Stragglers& stragglers, const std::vector<RankTimes>& ranks,
                              int steps, double step_s) {
  std::vector<std::string> sentences;
  for (int i = 0; i < steps; ++i)
    if (const auto sentence = stragglers.add(ranks, step_s, name)) sentences.push_back(*sentence);
  return sentences;
}

TEST(Stragglers, TimesTravelAsASum) {
  std::vector<double> sum(12);
  for (int rank = 0; rank < 3; ++rank) {
    const auto mine = encode({0.5 * rank, 1.0 + rank, 2.0 - rank, 0.25 * (rank % 2)}, rank, 3);
    ASSERT_EQ(mine.size(), sum.size());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += mine[i];
  }
  const auto ranks = decode_times(sum);
  ASSERT_EQ(ranks.size(), 3u);
  EXPECT_EQ(ranks[2].data_s, 1.0);
  EXPECT_EQ(ranks[1].own_s, 2.0);
  const auto expect = [&](double RankTimes::*time, double least, double most, int rank) {
    const TimeRange range = range_of(ranks, time);
    EXPECT_EQ(range.least_s, least);
    EXPECT_EQ(range.most_s, most);
    EXPECT_EQ(range.most_rank, rank);
  };
  expect(&RankTimes::data_s, 0, 1, 2);
  expect(&RankTimes::own_s, 1, 3, 2);
  expect(&RankTimes::gather_wait_s, 0, 2, 0);
  expect(&RankTimes::reduce_wait_s, 0, 0.25, 1);
}

TEST(Stragglers, IsNamedOnceAfterSomeTime) {
  Stragglers stragglers(4);
  const std::vector<RankTimes> ranks{
      {0.1, 1, 0.7, 0.1}, {0.1, 1.02, 0.68, 0.1}, {0.9, 1.8, 0.01, 0}, {0.1, 0.98, 0.72, 0.1}};
  EXPECT_TRUE(said(stragglers, ranks, 19, 1.8).empty());
  const auto sentences = said(stragglers, ranks, 100, 1.8);
  ASSERT_EQ(sentences.size(), 1u);
  EXPECT_EQ(
      sentences[0],
      "rank 2 on h1 is slower than the others, who wait for it: 1.80 s of its own work in each "
      "of the last 20 steps, the others 1.00 s; in a step they wait 0.70 s for parameters and "
      "0.10 s for sums, it 0.01 s for parameters and 0.00 s for sums; its data is late (0.90 s of "
      "waiting for it): "
      "look at its disk or network, or raise data.threads");
}

TEST(Stragglers, TheReasonIsNotAlwaysData) {
  Stragglers stragglers(2);
  const auto sentences = said(stragglers, {{0.1, 1}, {0.1, 2}}, 20, 2);
  ASSERT_EQ(sentences.size(), 1u);
  EXPECT_NE(sentences[0].find("rank 1 on h0 is slower"), std::string::npos) << sentences[0];
  EXPECT_NE(sentences[0].find("its data comes in time"), std::string::npos) << sentences[0];
}

TEST(Stragglers, NobodyIsNamedWithoutCause) {
  Stragglers stragglers(3);
  // A little slower; fast steps, of which a fraction is nothing; now this one, now that one; alone.
  EXPECT_TRUE(said(stragglers, {{0, 1}, {0, 1.1}, {0, 1.2}}, 100, 1.2).empty());
  EXPECT_TRUE(said(stragglers, {{0, 0.01}, {0, 0.01}, {0, 0.04}}, 10000, 0.04).empty());
  for (int i = 0; i < 100; ++i)
    EXPECT_TRUE(
        said(stragglers, {{0, i % 2 ? 3.0 : 1}, {0, 1}, {0, i % 2 ? 1 : 3.0}}, 1, 3).empty());
  Stragglers alone(1);
  EXPECT_TRUE(said(alone, {{0, 1}}, 100, 1).empty());
}

TEST(Stragglers, ShortStepsTakeMoreOfThem) {
  Stragglers stragglers(2);
  const std::vector<RankTimes> ranks{{0, 0.1}, {0, 0.2}};
  EXPECT_TRUE(said(stragglers, ranks, 49, 0.2).empty()) << "less than 10 s";
  EXPECT_EQ(said(stragglers, ranks, 2, 0.2).size(), 1u);
}

}  // namespace
}  // namespace floe::train::stragglers_test
