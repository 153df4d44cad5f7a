#include "floe/plan/step/worlds.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/table.h"
#include "floe/observe/report/html.h"
#include "floe/strategy/strategy_options.h"

namespace floe::plan {
namespace {

constexpr int kMostRanks = 100'000;

[[noreturn]] void refuse_worlds(const std::string& text) {
  throw ConfigError(str("--worlds '", text, "' is no range of ranks; say for example 8..1024 ",
                        "(doubling) or 8,24,96, from 1 to ", kMostRanks));
}

int parse_ranks(std::string_view part, const std::string& text) {
  int ranks = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), ranks);
  if (error != std::errc() || end != part.data() + part.size() || ranks < 1 || ranks > kMostRanks)
    refuse_worlds(text);
  return ranks;
}

std::string number(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

// One value over the number of ranks, which doubles from one mark to the next.
struct Curve {
  std::string title, unit;
  std::vector<double> values;
  int digits = 0;
};

std::string svg_of(const Curve& curve, const std::vector<WorldRow>& rows) {
  constexpr double kWidth = 640, kHeight = 240, kLeft = 70, kBottom = 34, kTop = 14, kRight = 16;
  const double most = std::max(1e-12, *std::max_element(curve.values.begin(), curve.values.end()));
  const double first = std::log2(rows.front().step.world_size);
  const double last = std::log2(rows.back().step.world_size);
  const auto x = [&](int world) {
    const double share = last > first ? (std::log2(world) - first) / (last - first) : 0.5;
    return kLeft + share * (kWidth - kLeft - kRight);
  };
  const auto y = [&](double value) {
    return kHeight - kBottom - value / most / 1.05 * (kHeight - kBottom - kTop);
  };
  std::string svg = str("<figure><figcaption><b>", report::escaped(curve.title), ":</b> ",
                        report::escaped(curve.unit), "</figcaption><svg viewBox=\"0 0 ", kWidth,
                        " ", kHeight, "\" role=\"img\" style=\"max-width:44em\">");
  for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    const std::string at = number(y(share * most), 1);
    svg += str("<line x1=\"", kLeft, "\" x2=\"", kWidth - kRight, "\" y1=\"", at, "\" y2=\"", at,
               "\" stroke=\"#8884\"/><text x=\"", kLeft - 8, "\" y=\"", at,
               "\" text-anchor=\"end\" dominant-baseline=\"middle\" font-size=\"12\" "
               "fill=\"currentColor\">",
               number(share * most, most < 10 ? 1 + curve.digits : curve.digits), "</text>");
  }
  std::string points, marks;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const int world = rows[i].step.world_size;
    const std::string px = number(x(world), 1), py = number(y(curve.values[i]), 1);
    points += str(px, ",", py, " ");
    marks +=
        str("<circle cx=\"", px, "\" cy=\"", py, "\" r=\"3.5\" fill=\"#2a6fdb\"><title>", world,
            " ranks: ", number(curve.values[i], curve.digits + 1), "</title></circle>",
            "<text x=\"", px, "\" y=\"", kHeight - kBottom + 18,
            "\" text-anchor=\"middle\" font-size=\"12\" fill=\"currentColor\">", world, "</text>");
  }
  return str(svg, "<polyline fill=\"none\" stroke=\"#2a6fdb\" stroke-width=\"2\" points=\"", points,
             "\"/>", marks, "</svg></figure>");
}

StepSettings twice(StepSettings settings) {
  for (BatchPart& part : settings.batch) part.sequences *= 2;
  return settings;
}

// How many times the batch of `once` fits, if memory goes on growing as from it to its double.
double batch_factor(const StepReport& once, const StepReport& double_batch) {
  const Machine& machine = once.settings.machine;
  const double room =
      static_cast<double>(machine.memory.bytes - machine.context.bytes) / (1 + machine.slack);
  const auto grows = static_cast<double>(double_batch.peak() - once.peak());
  return std::max(0.0, 1 + (room - static_cast<double>(once.peak())) / std::max(grows, 1.0));
}

}  // namespace

std::vector<int> parse_worlds(const std::string& text) {
  std::vector<int> worlds;
  const std::size_t dots = text.find("..");
  if (dots != std::string::npos) {
    const std::string_view whole = text;
    const int first = parse_ranks(whole.substr(0, dots), text);
    const int last = parse_ranks(whole.substr(dots + 2), text);
    if (first > last) refuse_worlds(text);
    for (int world = first; world <= last; world *= 2) worlds.push_back(world);
    if (worlds.back() != last) worlds.push_back(last);
    return worlds;
  }
  std::string_view rest = text;
  for (;;) {
    const std::size_t comma = rest.find(',');
    worlds.push_back(parse_ranks(rest.substr(0, comma), text));
    if (worlds.size() > 1 && worlds.back() <= worlds[worlds.size() - 2]) refuse_worlds(text);
    if (comma == std::string_view::npos) return worlds;
    rest.remove_prefix(comma + 1);
  }
}

Worlds plan_worlds(const PlanSubject& subject, const StepSettings& settings,
                   const std::vector<int>& sizes) {
  Worlds worlds;
  worlds.title = str(subject.type, " with ", shard::name_of(subject.strategy.sharding), " on ",
                     settings.machine.name);
  for (const int size : sizes) {
    PlanSubject here = subject;
    here.world_size = size;
    const PlanReport report = make_report(std::move(here));
    WorldRow row;
    row.step = plan_step(report, settings);
    row.batch_factor = batch_factor(row.step, plan_step(report, twice(settings)));
    worlds.rows.push_back(std::move(row));
    const StepReport& first = worlds.rows.front().step;
    WorldRow& added = worlds.rows.back();
    added.efficiency =
        added.step.tokens_per_second() / size / (first.tokens_per_second() / first.world_size);
  }
  return worlds;
}

namespace {

// What a row's numbers are of.
std::string holder_of(const Worlds& worlds) {
  return worlds.rows.front().step.settings.machine.of_cores() ? "rank" : "GPU";
}

}  // namespace

std::string to_text(const Worlds& worlds) {
  using enum Align;
  const std::string one = holder_of(worlds);
  Table table({right, right, right, right, right, right, right, right, right, right}, 0);
  table.row({"ranks", "nodes", "update", "tokens/s", "per " + one, "efficiency", "waits",
             "in nodes", "between", "needs"});
  for (const WorldRow& row : worlds.rows) {
    const StepReport& step = row.step;
    table.row({str(step.world_size), str(step.num_nodes),
               number(1e3 * step.time.seconds, 0) + " ms",
               format_count(static_cast<std::int64_t>(step.tokens_per_second())),
               number(step.tokens_per_second() / step.world_size, 0),
               number(100 * row.efficiency, 0) + "%", number(1e3 * step.time.exposed, 0) + " ms",
               number(step.time.intra_bytes / 1e9, 1) + " GB",
               number(step.time.inter_bytes / 1e9, 1) + " GB",
               format_bytes(step.needed()) + (step.fits() ? "" : " (too much)")});
  }
  const double most = worlds.rows.back().batch_factor;
  return str(worlds.title, "\n", table.text(), "\"in nodes\" and \"between\": what reaches a ", one,
             " in an update over the links of a node and of the network.\nOf the batch, about ",
             number(worlds.rows.front().batch_factor, 1), " times as much fits on ",
             worlds.rows.front().step.world_size, " ranks and ", number(most, 1), " times on ",
             worlds.rows.back().step.world_size, ".\n");
}

nlohmann::ordered_json to_json(const Worlds& worlds) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const WorldRow& row : worlds.rows) {
    const StepReport& step = row.step;
    rows.push_back({{"world_size", step.world_size},
                    {"num_nodes", step.num_nodes},
                    {"seconds", step.time.seconds},
                    {"tokens_per_second", step.tokens_per_second()},
                    {"tokens_per_second_per_gpu", step.tokens_per_second() / step.world_size},
                    {"efficiency", row.efficiency},
                    {"exposed", step.time.exposed},
                    {"intra_bytes", step.time.intra_bytes},
                    {"inter_bytes", step.time.inter_bytes},
                    {"intra_link", step.time.intra_seconds},
                    {"inter_link", step.time.inter_seconds},
                    {"needed_bytes", step.needed()},
                    {"fits", step.fits()},
                    {"batch_factor", row.batch_factor}});
  }
  return {{"title", worlds.title}, {"worlds", rows}};
}

std::string to_html(const Worlds& worlds) {
  const auto curve = [&](const char* title, const char* unit, int digits,
                         const std::function<double(const WorldRow&)>& value) {
    Curve one{title, unit, {}, digits};
    for (const WorldRow& row : worlds.rows) one.values.push_back(value(row));
    return svg_of(one, worlds.rows);
  };
  const std::string one = holder_of(worlds), reach = "GB that reach a " + one + " in an update",
                    each = "on each " + one,
                    memory = "GiB that " + std::string(one == "GPU" ? "a GPU" : "the machine") +
                             " must have";
  std::string body = str("<h1>", report::escaped(worlds.title), "</h1><p>By floe plan --worlds; ",
                         "below each curve the number of ranks.</p>");
  body += curve("Tokens a second", each.c_str(), 0, [](const WorldRow& row) {
    return row.step.tokens_per_second() / row.step.world_size;
  });
  body += curve("Efficiency", "%, against the first", 0,
                [](const WorldRow& row) { return 100 * row.efficiency; });
  body += curve("Waits", "ms of an update, for other ranks, copies and the host", 0,
                [](const WorldRow& row) { return 1e3 * row.step.time.exposed; });
  body += curve("Traffic inside of nodes", reach.c_str(), 0,
                [](const WorldRow& row) { return row.step.time.intra_bytes / 1e9; });
  body += curve("Traffic between nodes", reach.c_str(), 0,
                [](const WorldRow& row) { return row.step.time.inter_bytes / 1e9; });
  body += curve("Memory", memory.c_str(), 0,
                [](const WorldRow& row) { return static_cast<double>(row.step.needed()) / kGiB; });
  body += curve("Largest batch", "times the planned one, as memory grows with it", 0,
                [](const WorldRow& row) { return row.batch_factor; });
  return report::page_html(worlds.title, body);
}

}  // namespace floe::plan
