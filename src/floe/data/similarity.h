// The similarity matrix of an MMC4 document (images x sentences), as numpy would take it.
#pragma once

#include <cstddef>
#include <vector>

#include "floe/data/python_json.h"

namespace floe::data {

struct Similarities {
  std::size_t rows = 0, columns = 0;
  std::vector<double> values;  // row-major

  double at(std::size_t row, std::size_t column) const { return values[row * columns + column]; }
};

// The rows of these images, in this order. All of the matrix must be rectangular and numeric, though
// NaN does no harm in rows that are not asked for. true and false count as 1 and 0 beside at least one
// number. Throws Drop (bad_matrix).
Similarities pick_similarities(const Json& matrix, const std::vector<std::size_t>& images);

}  // namespace floe::data
