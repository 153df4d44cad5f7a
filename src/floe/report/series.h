// One value over the steps of a run of any length, in bounded memory: neighbouring steps share a
// bucket once there are many.
#pragma once

#include <cstdint>
#include <vector>

namespace floe::report {

struct Bucket {
  std::int64_t first_step = 0, last_step = 0;
  std::int64_t count = 0;
  double sum = 0, least = 0, most = 0;
  double step() const {
    return static_cast<double>(first_step) / 2 + static_cast<double>(last_step) / 2;
  }
  double mean() const { return sum / static_cast<double>(count); }
};

class Series {
 public:
  Series();

  // At most so many buckets; at least half of that once there were as many steps.
  static constexpr std::size_t kMostBuckets = 800;

  // What is not finite, or beyond 1e300, is counted, not kept.
  void add(std::int64_t step, double value);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  // True when buckets stand for several steps each.
  bool thinned() const { return steps_per_bucket_ > 1; }
  std::int64_t count() const { return count_; }
  std::int64_t num_not_finite() const { return num_not_finite_; }
  double last() const { return last_; }  // NaN when there is none
  double mean() const;                   // of all steps
  double sum() const { return sum_; }
  double least() const;
  double most() const;
  // Moving averages over about a thirtieth of the curve to either side, one value per bucket.
  std::vector<double> smoothed() const;

 private:
  std::vector<Bucket> buckets_;
  std::int64_t steps_per_bucket_ = 1;
  std::int64_t count_ = 0, num_not_finite_ = 0;
  double sum_ = 0, last_;
};

}  // namespace floe::report
