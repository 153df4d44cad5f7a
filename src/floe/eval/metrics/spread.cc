#include "floe/eval/metrics/spread.h"

#include <cmath>
#include <limits>
#include <vector>

namespace floe::eval {
namespace {

constexpr double kShare = 0.975;  // both ends of 95%

// The regularised incomplete beta function by its continued fraction (Lentz), for x below its turn.
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  const auto kept_off_zero = [](double value) { return std::abs(value) < kTiny ? kTiny : value; };
  double c = 1, d = 1 / kept_off_zero(1 - (a + b) * x / (a + 1)), fraction = d;
  for (int m = 1; m <= 500; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    double change = 1;
    for (const double term : {even, odd}) {
      d = 1 / kept_off_zero(1 + term * d);
      c = kept_off_zero(1 + term / c);
      change = c * d;
      fraction *= change;
    }
    if (std::abs(change - 1) < 1e-15) break;
  }
  return fraction;
}

double incomplete_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) +
                                a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

// How often |t| is at least this.
double both_tails(double t, double freedom) {
  return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t));
}

}  // namespace

double student_quantile(double share, double freedom) {
  const double tails = 2 * (1 - share);
  double low = 0, high = 1;
  while (both_tails(high, freedom) > tails) high *= 2;
  for (int i = 0; i < 200 && high - low > 1e-13 * high; ++i) {
    const double middle = (low + high) / 2;
    (both_tails(middle, freedom) > tails ? low : high) = middle;
  }
  return (low + high) / 2;
}

Spread spread_of(std::span<const double> trials) {
  std::vector<double> numbers;
  for (const double value : trials)
    if (!std::isnan(value)) numbers.push_back(value);
  const auto count = static_cast<double>(numbers.size());
  Spread spread;
  if (numbers.empty()) {
    spread.mean = spread.stddev = std::numeric_limits<double>::quiet_NaN();
    return spread;
  }
  for (const double value : numbers) spread.mean += value / count;
  double squares = 0;
  for (const double value : numbers) squares += (value - spread.mean) * (value - spread.mean);
  spread.stddev = std::sqrt(squares / count);
  if (numbers.size() > 1)
    spread.half_width =
        student_quantile(kShare, count - 1) * std::sqrt(squares / (count - 1) / count);
  return spread;
}

}  // namespace floe::eval
