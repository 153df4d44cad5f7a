#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "floe/core/str.h"
#include "floe/core/table.h"
#include "floe/observe/diagnostics/timeline.h"

namespace floe::diagnostics {
namespace {

// What a span took without the spans directly inside it.
std::vector<double> own_microseconds(const std::vector<Span>& spans) {
  std::vector<std::size_t> order(spans.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  // Outer before inner ones: those that begin together by their end, else by the later record.
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (spans[a].begin_us != spans[b].begin_us) return spans[a].begin_us < spans[b].begin_us;
    if (spans[a].end_us != spans[b].end_us) return spans[a].end_us > spans[b].end_us;
    return a > b;
  });
  std::vector<double> own(spans.size(), 0);
  std::vector<std::size_t> around;
  for (const std::size_t i : order) {
    while (!around.empty() && spans[around.back()].end_us <= spans[i].begin_us) around.pop_back();
    const double took = spans[i].end_us - spans[i].begin_us;
    own[i] += took;
    if (!around.empty()) own[around.back()] -= took;
    around.push_back(i);
  }
  return own;
}

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", 1e3 * seconds);
  return text;
}

template <double UnitTime::*part>
double sum(const std::vector<UnitTime>& units) {
  double seconds = 0;
  for (const UnitTime& unit : units) seconds += unit.*part;
  return seconds;
}

}  // namespace

double StepTimes::gather_wait_s() const { return sum<&UnitTime::gather_wait_s>(units); }
double StepTimes::compute_s() const {
  return sum<&UnitTime::forward_s>(units) + sum<&UnitTime::backward_s>(units);
}
double StepTimes::reduce_wait_s() const { return sum<&UnitTime::reduce_wait_s>(units); }

std::vector<Span> without_first_step(std::vector<Span> spans) {
  const auto is_step = [](const Span& span) { return span.kind == Span::Kind::step; };
  if (std::count_if(spans.begin(), spans.end(), is_step) < 2) return spans;
  spans.erase(spans.begin(), std::next(std::find_if(spans.begin(), spans.end(), is_step)));
  return spans;
}

StepTimes step_times(const std::vector<Span>& spans, const shard::ShardPlan& plan) {
  StepTimes times;
  std::map<std::string, std::size_t, std::less<>> index_of;
  std::map<std::string, std::string, std::less<>> home_of_group;
  for (const shard::PlannedUnit& unit : plan.units) {
    index_of[unit.label()] = times.units.size();
    times.units.push_back({unit.label(), unit.class_name});
  }
  for (const shard::PlannedGroup& group : plan.groups)
    home_of_group[group.name] = plan.units[group.units.front()].label();

  const std::vector<double> own = own_microseconds(spans);
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    if (span.kind == Span::Kind::step) {
      times.num_steps += 1;
      times.step_s += 1e-6 * (span.end_us - span.begin_us);
      continue;
    }
    const bool reduces = span.kind == Span::Kind::reduce_wait;
    UnitTime& unit = times.units[index_of.at(reduces ? home_of_group.at(span.group) : span.name)];
    const double seconds = 1e-6 * own[i];
    switch (span.kind) {
      case Span::Kind::forward: unit.forward_s += seconds; break;
      case Span::Kind::recompute:
      case Span::Kind::backward: unit.backward_s += seconds; break;
      case Span::Kind::gather_wait: unit.gather_wait_s += seconds; break;
      case Span::Kind::reduce_wait: unit.reduce_wait_s += seconds; break;
      case Span::Kind::step: break;
    }
  }
  if (times.num_steps > 0) {
    const auto steps = static_cast<double>(times.num_steps);
    times.step_s /= steps;
    for (UnitTime& unit : times.units)
      for (double* part :
           {&unit.gather_wait_s, &unit.forward_s, &unit.backward_s, &unit.reduce_wait_s})
        *part /= steps;
  }
  std::stable_sort(times.units.begin(), times.units.end(),
                   [](const UnitTime& a, const UnitTime& b) { return a.total_s() > b.total_s(); });
  return times;
}

std::vector<std::string> time_lines(const StepTimes& times, std::size_t top_k, bool of_device) {
  using enum Align;
  Table table({left, left, right, right, right, right}, 2);
  table.row({str("per step in ms (", of_device ? "of the device" : "of the host", ")"), "",
             "gather wait", "forward", "backward", "reduce wait"});
  for (std::size_t i = 0; i < std::min(top_k, times.units.size()); ++i) {
    const UnitTime& unit = times.units[i];
    table.row({unit.unit, unit.class_name, milliseconds(unit.gather_wait_s),
               milliseconds(unit.forward_s), milliseconds(unit.backward_s),
               milliseconds(unit.reduce_wait_s)});
  }
  std::vector<std::string> lines = table.lines();
  lines.push_back(str("a step takes ", milliseconds(times.step_s),
                      " ms: ", percent(times.compute_s(), times.step_s), " computing in units, ",
                      percent(times.gather_wait_s(), times.step_s), " waiting for gathers, ",
                      percent(times.reduce_wait_s(), times.step_s),
                      " waiting for reductions, the rest outside of units"));
  if (5 * times.gather_wait_s() > times.step_s)
    lines.emplace_back(
        "waits for gathers are a large part: raise strategy.prefetch, keep frozen parameters "
        "resident (strategy.frozen.residency), use shard_grad_op, or give each rank more to "
        "compute");
  if (5 * times.reduce_wait_s() > times.step_s)
    lines.emplace_back(
        "waits for reductions are a large part: accumulate gradients "
        "(train.gradient_accumulation), reduce in a smaller dtype, or give each rank more to "
        "compute");
  return lines;
}

nlohmann::ordered_json times_json(const StepTimes& times) {
  auto units = nlohmann::ordered_json::array();
  for (const UnitTime& unit : times.units)
    units.push_back({{"unit", unit.unit},
                     {"class", unit.class_name},
                     {"gather_wait_s", unit.gather_wait_s},
                     {"forward_s", unit.forward_s},
                     {"backward_s", unit.backward_s},
                     {"reduce_wait_s", unit.reduce_wait_s}});
  return units;
}

}  // namespace floe::diagnostics
