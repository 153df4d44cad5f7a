// One-to-one assignment with the largest total.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace floe::data {

struct Match {
  std::size_t row = 0, column = 0;
};

// Pairs min(rows, columns) rows and columns so that the sum of `values` (row-major, rows x columns)
// is largest; the result is in order of rows. Follows scipy.optimize.linear_sum_assignment, also in
// which of several best assignments it gives. Throws DataError when a value is NaN or +infinity, or
// when only pairs with -infinity are left.
std::vector<Match> best_assignment(std::span<const double> values, std::size_t rows,
                                   std::size_t columns);

}  // namespace floe::data
