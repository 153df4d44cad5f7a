// Line charts as inline SVG.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace floe::report {

// Neighbouring steps that share a point of a curve.
struct Bucket {
  std::int64_t first_step = 0, last_step = 0;
  std::int64_t count = 0;
  double sum = 0, least = 0, most = 0;
  double step() const {
    return static_cast<double>(first_step) / 2 + static_cast<double>(last_step) / 2;
  }
  double mean() const { return sum / static_cast<double>(count); }
};

// One value over the steps of a run of any length, in bounded memory: neighbouring steps share a
// bucket once there are many.
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

struct Line {
  std::string name;
  const Series* series = nullptr;
};

// Steps that belong together, as a strip along the top.
struct Band {
  std::string name;
  std::int64_t first_step = 0, last_step = 0;
  std::size_t color = 0;  // see band_color
};

struct Chart {
  std::string title, note;  // the note says what the values are and in which unit
  std::vector<Line> lines;  // those without a value are said to have none
  std::vector<Band> bands;
  bool bytes = false;      // labels such as 1.5 GiB
  bool log_scale = false;  // where all values are positive
  bool smooth = false;     // a moving average in front of the values themselves
};

// A <figure>: title, legend with the last values, curves, axes. The page's script shows the values
// under the pointer.
std::string to_html(const Chart& chart);

// The class of a colour, so that bands differ from the first lines.
std::string band_color(std::size_t color);

// Round numbers that cover [least, most], about `wanted` of them.
std::vector<double> round_ticks(double least, double most, int wanted);
// "0.0001", "12.5k", "3.1M"
std::string short_number(double value);

}  // namespace floe::report
