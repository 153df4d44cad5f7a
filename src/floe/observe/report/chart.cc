#include "floe/observe/report/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/observe/metrics/jsonl_reader.h"
#include "floe/observe/report/html.h"

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
  // An average that only looks back lags behind a falling loss, so that one from either end is
  // taken.
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

namespace {

// In the units of the view box.
constexpr double kWidth = 640, kHeight = 250;
constexpr double kLeft = 64, kRight = 12, kTop = 10, kBottom = 26;
constexpr int kNumColors = 8;

std::string printed(const char* format, double number) {
  char text[64];
  std::snprintf(text, sizeof text, format, number);
  return text;
}

struct Range {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();

  void include(double from, double to) {
    least = std::min(least, from);
    most = std::max(most, to);
  }
  // Never empty, so that one value has a place in the middle.
  void widen(double share) {
    const double alone = most == 0 ? 1 : std::max(std::abs(most) * 0.1, 1e-300);
    const double room = most > least ? (most - least) * share : alone;
    least -= room;
    most += room;
  }
};

// From values to places in the view box.
class Axes {
 public:
  explicit Axes(const Chart& chart) {
    for (const Line& line : chart.lines) {
      const auto& buckets = line.series->buckets();
      if (buckets.empty()) continue;
      x_.include(static_cast<double>(buckets.front().first_step),
                 static_cast<double>(buckets.back().last_step));
      y_.include(line.series->least(), line.series->most());
    }
    log_ = chart.log_scale && y_.least > 0;
    if (log_) y_ = {std::log10(y_.least), std::log10(y_.most)};
    if (x_.most <= x_.least) x_.widen(0);
    y_.widen(0.05);
  }

  double x(double step) const {
    return kLeft + (step - x_.least) / (x_.most - x_.least) * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    const double place = log_ ? std::log10(value) : value;
    return kHeight - kBottom -
           (place - y_.least) / (y_.most - y_.least) * (kHeight - kTop - kBottom);
  }
  std::vector<double> x_ticks() const {
    std::vector<double> ticks = round_ticks(x_.least, x_.most, 6);
    std::erase_if(ticks, [](double tick) { return tick != std::round(tick); });
    return ticks;
  }
  std::vector<double> y_ticks(bool bytes) const {
    if (log_) return log_ticks();
    const double size = std::max(std::abs(y_.least), std::abs(y_.most));
    const double unit = !bytes         ? 1
                        : size >= kGiB ? kGiB
                        : size >= kMiB ? kMiB
                        : size >= kKiB ? kKiB
                                       : 1;
    std::vector<double> ticks = round_ticks(y_.least / unit, y_.most / unit, 5);
    for (double& tick : ticks) tick *= unit;
    return ticks;
  }
  const Range& x_range() const { return x_; }

 private:
  // 1, 2, 5, 10, 20 ... over a few decades, else powers of ten; inside of one as on a plain scale.
  std::vector<double> log_ticks() const {
    std::vector<double> ticks;
    const double decades = y_.most - y_.least;
    if (decades < 1) return round_ticks(std::pow(10, y_.least), std::pow(10, y_.most), 5);
    const double every = std::ceil(decades / 6);
    // NOLINTNEXTLINE(bugprone-float-loop-counter): powers are whole numbers
    for (double power = std::floor(y_.least); power <= y_.most; power += every)
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double place = power + std::log10(factor);
        if (place >= y_.least && place <= y_.most && (factor == 1 || decades < 3))
          ticks.push_back(factor * std::pow(10, power));
      }
    return ticks;
  }

  Range x_, y_;
  bool log_ = false;
};

std::string label(const Chart& chart, double value) {
  return chart.bytes ? format_bytes(static_cast<std::int64_t>(std::clamp(value, -9e18, 9e18)))
                     : short_number(value);
}

std::string grid(const Chart& chart, const Axes& axes) {
  // Far enough to the left for a tick where the axis begins.
  std::string svg = str("<text class='tick' x='0' y='", kHeight - 8, "'>step</text>");
  const std::string bottom = printed("%.1f", kHeight - kBottom);
  for (const double tick : axes.y_ticks(chart.bytes)) {
    const std::string y = printed("%.1f", axes.y(tick));
    svg += str("<line class='grid' x1='", kLeft, "' x2='", kWidth - kRight, "' y1='", y, "' y2='",
               y, "'/><text class='tick' text-anchor='end' x='", kLeft - 6, "' y='", y, "' dy='4'>",
               escaped(label(chart, tick)), "</text>");
  }
  for (const double tick : axes.x_ticks()) {
    const std::string x = printed("%.1f", axes.x(tick));
    svg += str("<line class='grid' x1='", x, "' x2='", x, "' y1='", kTop, "' y2='", bottom,
               "'/><text class='tick' text-anchor='middle' x='", x, "' y='", kHeight - 8, "'>",
               escaped(short_number(tick)), "</text>");
  }
  return svg;
}

// The way through the points; one point alone becomes a dot.
template <class Y>
std::string path(const std::vector<Bucket>& buckets, const Axes& axes, const Y& value_of) {
  std::string way;
  for (std::size_t i = 0; i < buckets.size(); ++i)
    way += str(i == 0 ? "M" : "L", printed("%.1f", axes.x(buckets[i].step())), " ",
               printed("%.1f", axes.y(value_of(i))));
  if (buckets.size() == 1) way += "h0.01";
  return way;
}

std::string curves(const Chart& chart, const Axes& axes) {
  std::string svg;
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const Series& series = *chart.lines[i].series;
    const auto& buckets = series.buckets();
    if (buckets.empty()) continue;
    const std::string color = str("c", i % kNumColors);
    if (series.thinned()) {  // a band from the least to the most value of each bucket
      std::string band = path(buckets, axes, [&](std::size_t k) { return buckets[k].most; });
      for (std::size_t k = buckets.size(); k-- > 0;)
        band += str("L", printed("%.1f", axes.x(buckets[k].step())), " ",
                    printed("%.1f", axes.y(buckets[k].least)));
      svg += str("<path class='band ", color, "' d='", band, "Z'/>");
    }
    const std::string values =
        path(buckets, axes, [&](std::size_t k) { return buckets[k].mean(); });
    svg += str("<path class='curve ", chart.smooth ? "raw " : "", buckets.size() == 1 ? "dot " : "",
               color, "' d='", values, "'/>");
    if (chart.smooth) {
      const std::vector<double> smooth = series.smoothed();
      svg += str("<path class='curve smooth ", color, "' d='",
                 path(buckets, axes, [&](std::size_t k) { return smooth[k]; }), "'/>");
    }
  }
  return svg;
}

std::string bands(const Chart& chart, const Axes& axes) {
  constexpr double kThick = 6;
  std::string svg;
  for (const Band& band : chart.bands) {
    // A step reaches from the middle to the one before to the middle to the next.
    const auto edge = [&](double step) { return std::clamp(axes.x(step), kLeft, kWidth - kRight); };
    const double left = edge(static_cast<double>(band.first_step) - 0.5);
    const double right = edge(static_cast<double>(band.last_step) + 0.5);
    svg += str("<rect class='strip ", band_color(band.color), "' x='", printed("%.1f", left),
               "' width='", printed("%.1f", std::max(right - left, 0.5)), "' y='", kTop - kThick,
               "' height='", kThick, "'><title>", escaped(band.name), ": steps ", band.first_step,
               " to ", band.last_step, "</title></rect>");
  }
  return svg;
}

std::string legend(const Chart& chart) {
  std::string html = "<ul class='legend'>";
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const Line& line = chart.lines[i];
    html += str("<li><i class='c", i % kNumColors, "'></i>", escaped(line.name), " <b>",
                line.series->count() > 0 ? escaped(label(chart, line.series->last())) : "no value",
                "</b>");
    if (line.series->num_not_finite() > 0)
      html += str(" <span class='bad'>", line.series->num_not_finite(), " not finite</span>");
    html += "</li>";
  }
  return html + "</ul>";
}

// What the page's script needs to show values under the pointer.
std::string points(const Chart& chart, const Axes& axes) {
  std::string json =
      str("{\"bytes\":", chart.bytes ? "true" : "false", ",\"left\":", kLeft,
          ",\"right\":", kWidth - kRight, ",\"first\":", observe::number_text(axes.x_range().least),
          ",\"last\":", observe::number_text(axes.x_range().most), ",\"lines\":[");
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    json += i ? ",[" : "[";
    const auto& buckets = chart.lines[i].series->buckets();
    for (std::size_t k = 0; k < buckets.size(); ++k)
      json += str(k ? "," : "", "[", observe::number_text(buckets[k].step()), ",",
                  printed("%.6g", buckets[k].mean()), "]");
    json += "]";
  }
  return json + "]}";
}

}  // namespace

std::string band_color(std::size_t color) {
  return str("c", kNumColors - 1 - static_cast<int>(color % kNumColors));
}

std::vector<double> round_ticks(double least, double most, int wanted) {
  if (!(most > least) || !std::isfinite(most - least)) return {least};
  const double rough = (most - least) / wanted;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough) {
      step = factor * power;
      break;
    }
  std::vector<double> ticks;
  const double first = std::ceil(least / step);
  for (int i = 0; i <= 2 * wanted; ++i) {
    const double tick = (first + i) * step;
    if (!(tick <= most)) break;
    ticks.push_back(tick == 0 ? 0 : tick);  // no "-0"
  }
  return ticks;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (size >= 1e15) return printed("%.3g", value);
  if (size >= 1e9) return printed("%.4g", value / 1e9) + "G";
  if (size >= 1e6) return printed("%.4g", value / 1e6) + "M";
  if (size >= 1e4) return printed("%.4g", value / 1e3) + "k";
  return printed("%.4g", value);
}

std::string to_html(const Chart& chart) {
  std::string html = str("<figure><figcaption>", escaped(chart.title), "</figcaption>");
  if (!chart.note.empty()) html += str("<p class='note'>", escaped(chart.note), "</p>");
  html += legend(chart);
  const bool any = std::any_of(chart.lines.begin(), chart.lines.end(),
                               [](const Line& line) { return line.series->count() > 0; });
  if (!any) return html + "<p class='none'>No value is finite.</p></figure>";
  const Axes axes(chart);
  html +=
      str("<svg class='chart' viewBox='0 0 ", kWidth, " ", kHeight, "' role='img' aria-label='",
          escaped(chart.title), "'>", grid(chart, axes), bands(chart, axes), curves(chart, axes),
          "<line class='pointer' y1='", kTop, "' y2='", kHeight - kBottom, "'/></svg>",
          "<script type='application/json'>", for_script(points(chart, axes)), "</script>");
  return html + "</figure>";
}

}  // namespace floe::report
