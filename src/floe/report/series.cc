#include "floe/report/series.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace floe::report {
namespace {

constexpr double kMost = 1e300;  // sums and differences of such values stay finite

void merge(Bucket& into, const Bucket& from) {
  into.last_step = from.last_step;
  into.count += from.count;
  into.sum += from.sum;
  into.least = std::min(into.least, from.least);
  into.most = std::max(into.most, from.most);
}

}  // namespace

Series::Series() : last_(std::numeric_limits<double>::quiet_NaN()) {}

void Series::add(std::int64_t step, double value) {
  if (!(std::abs(value) <= kMost)) {
    ++num_not_finite_;
    return;
  }
  ++count_;
  sum_ += value;
  last_ = value;
  const Bucket one{step, step, 1, value, value, value};
  if (!buckets_.empty() && buckets_.back().count < steps_per_bucket_)
    merge(buckets_.back(), one);
  else
    buckets_.push_back(one);
  if (buckets_.size() <= kMostBuckets) return;

  std::vector<Bucket> halved;
  for (const Bucket& bucket : buckets_) {
    if (!halved.empty() && halved.back().count < 2 * steps_per_bucket_)
      merge(halved.back(), bucket);
    else
      halved.push_back(bucket);
  }
  buckets_ = std::move(halved);
  steps_per_bucket_ *= 2;
}

double Series::mean() const { return sum_ / static_cast<double>(count_); }

double Series::least() const {
  double value = std::numeric_limits<double>::infinity();
  for (const Bucket& bucket : buckets_) value = std::min(value, bucket.least);
  return value;
}

double Series::most() const {
  double value = -std::numeric_limits<double>::infinity();
  for (const Bucket& bucket : buckets_) value = std::max(value, bucket.most);
  return value;
}

std::vector<double> Series::smoothed() const {
  // An average that only looks back lags behind a falling loss, so that one from either end is taken.
  const double decay = 1 - 1 / std::max(1.0, static_cast<double>(buckets_.size()) / 30);
  std::vector<double> averages(buckets_.size());
  const auto add_average = [&](std::size_t first, std::size_t step) {
    double weighted = 0, weight = 0;
    for (std::size_t i = first; i < buckets_.size();
         i += step) {  // below 0 wraps around to the end
      weighted = decay * weighted + buckets_[i].mean();
      weight = decay * weight + 1;
      averages[i] += weighted / weight / 2;
    }
  };
  add_average(0, 1);
  add_average(buckets_.size() - 1, static_cast<std::size_t>(-1));
  return averages;
}

}  // namespace floe::report
