#include "floe/data/sources/assignment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "floe/core/error.h"

namespace floe::data {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kNone = static_cast<std::size_t>(-1);

// The shortest augmenting path method (D. Crouse, "On implementing 2D rectangular assignment
// algorithms", 2016) for at most as many rows as columns. Rows are added one by one; each finds the
// cheapest path over assigned columns to a free one. Ties are broken as scipy does: columns are
// tried from the last to the first, and among equals a free column wins.
class Solver {
 public:
  Solver(std::vector<double> costs, std::size_t rows, std::size_t columns)
      : costs_(std::move(costs)),
        rows_(rows),
        columns_(columns),
        row_price_(rows),
        column_price_(columns),
        distance_(columns),
        came_from_(columns, kNone),
        row_of_(columns, kNone),
        column_of_(rows, kNone) {}

  // The column of each row.
  const std::vector<std::size_t>& solve() {
    for (std::size_t row = 0; row < rows_; ++row) {
      const std::size_t free_column = find_path(row);
      update_prices(row);
      augment(row, free_column);
    }
    return column_of_;
  }

 private:
  std::size_t find_path(std::size_t start) {
    std::vector<std::size_t> remaining(columns_);
    std::iota(remaining.rbegin(), remaining.rend(), std::size_t{0});
    std::fill(distance_.begin(), distance_.end(), kInfinity);
    row_reached_.assign(rows_, false);
    column_reached_.assign(columns_, false);
    length_ = 0;
    for (std::size_t row = start;;) {
      row_reached_[row] = true;
      const std::size_t nearest = relax(row, remaining);
      require<DataError>(nearest != kNone, "the similarities allow no complete assignment");
      const std::size_t column = remaining[nearest];
      column_reached_[column] = true;
      remaining[nearest] = remaining.back();
      remaining.pop_back();
      if (row_of_[column] == kNone) return column;
      row = row_of_[column];
    }
  }

  // Shortens distances by way of `row`; returns the place in `remaining` of the nearest column.
  std::size_t relax(std::size_t row, const std::vector<std::size_t>& remaining) {
    std::size_t nearest = kNone;
    double lowest = kInfinity;
    for (std::size_t place = 0; place < remaining.size(); ++place) {
      const std::size_t column = remaining[place];
      const double reach =
          length_ + costs_[row * columns_ + column] - row_price_[row] - column_price_[column];
      if (reach < distance_[column]) {
        came_from_[column] = row;
        distance_[column] = reach;
      }
      if (distance_[column] < lowest || (distance_[column] == lowest && row_of_[column] == kNone)) {
        lowest = distance_[column];
        nearest = place;
      }
    }
    length_ = lowest;
    return lowest == kInfinity ? kNone : nearest;
  }

  void update_prices(std::size_t start) {
    row_price_[start] += length_;
    for (std::size_t row = 0; row < rows_; ++row)
      if (row_reached_[row] && row != start)
        row_price_[row] += length_ - distance_[column_of_[row]];
    for (std::size_t column = 0; column < columns_; ++column)
      if (column_reached_[column]) column_price_[column] -= length_ - distance_[column];
  }

  void augment(std::size_t start, std::size_t column) {
    for (std::size_t row = kNone; row != start;) {
      row = came_from_[column];
      row_of_[column] = row;
      std::swap(column_of_[row], column);
    }
  }

  std::vector<double> costs_;
  std::size_t rows_, columns_;
  std::vector<double> row_price_, column_price_, distance_;
  std::vector<std::size_t> came_from_, row_of_, column_of_;
  std::vector<bool> row_reached_, column_reached_;
  double length_ = 0;
};

}  // namespace

std::vector<Match> best_assignment(std::span<const double> values, std::size_t rows,
                                   std::size_t columns) {
  require(values.size() == rows * columns, "an assignment of ", rows, " x ", columns, " needs ",
          rows * columns, " values, not ", values.size());
  const bool transpose = columns < rows;
  std::vector<double> costs(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    require<DataError>(!std::isnan(values[i]) && values[i] != kInfinity,
                       "the similarities have an entry that is not a number or infinite");
    const std::size_t place = transpose ? i % columns * rows + i / columns : i;
    costs[place] = -values[i];
  }
  std::vector<Match> matches;
  if (values.empty()) return matches;
  Solver solver(std::move(costs), std::min(rows, columns), std::max(rows, columns));
  const auto& partner = solver.solve();
  for (std::size_t i = 0; i < partner.size(); ++i)
    matches.push_back(transpose ? Match{partner[i], i} : Match{i, partner[i]});
  std::sort(matches.begin(), matches.end(),
            [](const Match& a, const Match& b) { return a.row < b.row; });
  return matches;
}

}  // namespace floe::data
