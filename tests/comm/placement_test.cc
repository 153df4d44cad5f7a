#include "floe/comm/placement.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace floe::comm::placement_test {
namespace {

using Ranks = std::vector<int>;

// Rank r is on the host of the r-th letter.
std::vector<control::Member> on_hosts(const std::string& letters) {
  std::vector<control::Member> members;
  for (const char letter : letters) {
    control::Member& one = members.emplace_back();
    one.rank = static_cast<int>(members.size()) - 1;
    one.host = one.host_id = letter;
    one.device = "cpu";
  }
  return members;
}

TEST(Placement, HostsComeInTheOrderOfTheirFirstRanks) {
  const auto members = on_hosts("babca");
  const Placement placement(members, 4);
  EXPECT_EQ(placement.hosts(), (std::vector<Ranks>{{0, 2}, {1, 4}, {3}}));
  EXPECT_EQ(placement.by_host(), (Ranks{0, 2, 1, 4, 3}));
  EXPECT_EQ(placement.ranks_on_host(), 2);
  EXPECT_FALSE(placement.is_first_on_host());
  EXPECT_TRUE(Placement(members, 1).is_first_on_host());
  EXPECT_TRUE(placement.on_own_host(1));
  EXPECT_FALSE(placement.on_own_host(0));
}

TEST(Placement, ADeviceIsThatOfItsHost) {
  auto members = on_hosts("aabb");
  members[0].device = members[2].device = members[3].device = "cuda:0";
  members[1].device = "cuda:1";
  EXPECT_EQ(Placement(members, 0).ranks_on_device(), 1);
  EXPECT_EQ(Placement(members, 3).ranks_on_device(), 2);
  EXPECT_FALSE(Placement(members, 0).on_own_device(2)) << "of another host";
}

TEST(Placement, ALineForEachRank) {
  auto members = on_hosts("ab");
  members[1].address = "10.0.0.7";
  EXPECT_EQ(Placement(members, 0).lines(),
            (std::vector<std::string>{"rank 0: a cpu", "rank 1: b (10.0.0.7) cpu"}));
}

// Whether rows of so many ranks fit these hosts.
bool fits(const std::string& letters, int row_size) {
  const auto members = on_hosts(letters);
  return Placement(members, 0).rows_fit_hosts(row_size);
}

TEST(Placement, RowsAreOnOneHostOrMadeOfWholeHosts) {
  EXPECT_TRUE(fits("aabb", 1));
  EXPECT_TRUE(fits("aabb", 2));
  EXPECT_TRUE(fits("aabb", 4)) << "of two whole hosts";
  EXPECT_TRUE(fits("abab", 2)) << "dealt out in turn, and put together";
  EXPECT_TRUE(fits("aaaabb", 2));
  EXPECT_TRUE(fits("aaabbb", 6));
  EXPECT_TRUE(fits("aabbcc", 2));
  EXPECT_FALSE(fits("aaabbb", 2)) << "the second row crosses hosts";
  EXPECT_FALSE(fits("aaaabb", 3)) << "the second row has a rank of the first host";
  EXPECT_FALSE(fits("aabbcc", 3));
  EXPECT_FALSE(fits("abbb", 2)) << "a row of a whole host and a part of another";
}

}  // namespace
}  // namespace floe::comm::placement_test
