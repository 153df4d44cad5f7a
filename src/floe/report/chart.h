// A line chart as inline SVG.
#pragma once

#include <string>
#include <vector>

#include "floe/report/series.h"

namespace floe::report {

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
