#include "floe/data/sources/assignment.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/data/goldens.h"

namespace floe::data::assignment_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Assignment, GoldensOfScipyTiesIncluded) {
  const auto cases = golden("assignment.json");
  ASSERT_FALSE(cases.empty());
  for (const auto& g : cases) {
    const std::size_t rows = g["similarity"].size(), columns = g["similarity"][0].size();
    std::vector<double> values;
    for (const auto& row : g["similarity"])
      for (const double value : row) values.push_back(value);
    std::vector<std::size_t> found_rows, found_columns;
    double total = 0;
    for (const auto& [row, column] : best_assignment(values, rows, columns)) {
      found_rows.push_back(row);
      found_columns.push_back(column);
      total += values[row * columns + column];
    }
    EXPECT_EQ(nlohmann::json(found_rows), g["rows"]) << g.dump();
    EXPECT_EQ(nlohmann::json(found_columns), g["cols"]) << g.dump();
    EXPECT_NEAR(total, g["total"], 1e-12);
  }
}

TEST(Assignment, ConstantMatrixGivesTheDiagonal) {
  const std::vector<double> values(12, 0.5);
  const auto matches = best_assignment(values, 3, 4);
  ASSERT_EQ(matches.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(matches[i].row, i);
    EXPECT_EQ(matches[i].column, i);
  }
}

TEST(Assignment, RefusesWhatScipyRefuses) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(best_assignment(std::vector{0.1, nan}, 1, 2), DataError);
  EXPECT_THROW(best_assignment(std::vector{0.1, kInfinity}, 1, 2), DataError);
  EXPECT_THROW(best_assignment(std::vector{-kInfinity, -kInfinity}, 1, 2), DataError);
  const auto matches = best_assignment(std::vector{-kInfinity, 0.1, 0.2, 0.3}, 2, 2);
  EXPECT_EQ(matches[0].column, 1U);
  EXPECT_TRUE(best_assignment({}, 3, 0).empty());
}

}  // namespace
}  // namespace floe::data::assignment_test
