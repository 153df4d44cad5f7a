// What several trials say together.
#pragma once

#include <optional>
#include <span>

namespace floe::eval {

struct Spread {
  double mean = 0;
  double stddev = 0;  // of the trials themselves (divided by their number), as OpenFlamingo has it
  // Half the width of the interval that holds the true mean in 95 of 100 cases (Student's t), when
  // trials differ by chance alone. Nothing with fewer than two.
  std::optional<double> half_width;
};

// Trials without a number are left out; not a number when none is left.
Spread spread_of(std::span<const double> trials);

// The value that Student's t with so many degrees of freedom stays below in `share` of all cases,
// 0.5 < share < 1.
double student_quantile(double share, double freedom);

}  // namespace floe::eval
