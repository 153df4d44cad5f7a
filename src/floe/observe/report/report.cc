#include "floe/observe/report/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>

#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/observe/metrics/progress.h"
#include "floe/observe/report/chart.h"
#include "floe/observe/report/html.h"
#include "floe/observe/report/sections.h"

namespace floe::report {
namespace {

std::string tile(const std::string& name, const std::string& value) {
  return str("<div class='tile'><span>", escaped(name), "</span><b>", escaped(value), "</b></div>");
}

std::string date_text(double time_s) {
  const auto seconds =
      static_cast<std::time_t>(std::clamp(time_s, 0.0, 2.5e11));  // up to year 9999
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

std::string steps_text(const LoggedRun& run) {
  const std::string* wanted = run.setting("train.steps");
  return wanted && *wanted != "null" ? str(run.last_step, " of ", *wanted) : str(run.last_step);
}

std::string list(const std::vector<std::string>& items) {
  std::string html = "<ul class='plain'>";
  for (const std::string& item : items) html += str("<li>", escaped(item), "</li>");
  return html + "</ul>";
}

std::string lines(const std::vector<std::string>& texts) {
  std::string html = "<pre>";
  for (const std::string& text : texts) html += escaped(text) + "\n";
  return html + "</pre>";
}

// How many ranks there were, as far as the run's files tell.
std::size_t world_size(const LoggedRun& run) {
  if (run.diagnostics && !run.diagnostics->ranks.empty()) return run.diagnostics->ranks.size();
  return run.logs.size();
}

// "failed (exit code 1)". What a run that has not ended says of itself may be long ago.
std::string state_text(const observe::RunStatus& status) {
  const std::string state(observe::name_of(status.state));
  if (status.exit_code) return str(state, " (exit code ", *status.exit_code, ")");
  return str(state, ", as of ", date_text(status.updated_s));
}

std::string summary_section(const LoggedRun& run) {
  std::string html = str("<header><h1>", escaped(run.name), "</h1><p>", escaped(run.folder));
  if (run.first_time_s > 0)
    html += str(", ", date_text(run.first_time_s), " to ", date_text(run.last_time_s));
  html += "</p>";
  if (run.status && !run.status->reason.empty())
    html += str("<p id='reason'>", escaped(run.status->reason), "</p>");
  html += "</header><div class='tiles' id='summary'>";
  if (run.status) html += tile("state", state_text(*run.status));
  if (run.num_records > 0) {
    html += tile("steps", steps_text(run));
    if (run.last_time_s > run.first_time_s)
      html += tile("from the first step to the last",
                   observe::format_duration(run.last_time_s - run.first_time_s));
  }
  if (const std::size_t world = world_size(run)) html += tile("ranks", str(world));
  for (const auto& [name, series] : run.series) {
    if ((is_loss(name) || name.starts_with("val_")) && series.count() > 0)
      html += tile("last " + name, short_number(series.last()));
  }
  if (const Series* tokens = run.find("tokens_per_second"); tokens && tokens->count() > 0)
    html += tile("mean tokens per second", short_number(tokens->mean()));
  for (const char* name : {"skipped", "bad_samples"})
    if (const Series* series = run.find(name); series && series->count() > 0)
      html += tile(name == std::string("skipped") ? "batches skipped" : "bad samples",
                   short_number(series->last()));
  html += "</div>";
  if (!run.events.empty()) {
    html +=
        "<h2>Events</h2><table id='events'><tr><th class='number'>step</th><th></th><th></th></tr>";
    for (const Event& event : run.events)
      html += str("<tr><td class='number'>", event.step, "</td><td>", escaped(event.name),
                  "</td><td>", escaped(event.text), "</td></tr>");
    html += "</table>";
  }
  if (run.diagnostics && !run.diagnostics->strategy.empty())
    html += str("<h2>Strategy</h2><div id='strategy'>", list(run.diagnostics->strategy), "</div>");
  if (run.diagnostics && !run.diagnostics->notes.empty())
    html += str("<h2>Notes</h2><div id='notes'>", list(run.diagnostics->notes), "</div>");
  return html;
}

std::string problem_section(const LoggedRun& run) {
  if (run.problems.empty()) return "";
  return str("<section id='problems'><h2>Missing or damaged</h2>", list(run.problems),
             "</section>");
}

std::string settings_section(const LoggedRun& run) {
  if (run.settings.empty()) return "";
  std::string html =
      "<section><h2>Settings</h2><div class='scroll'><table id='settings'><tr><th>key</th><th>value"
      "</th></tr>";
  for (const auto& [name, value] : run.settings)
    html += str("<tr><td>", escaped(name), "</td><td>", escaped(value), "</td></tr>");
  return html + "</table></div></section>";
}

std::string log_section(const LoggedRun& run) {
  if (run.logs.empty()) return "";
  std::string html = "<section id='logs'><h2>Logs</h2>";
  for (const RankLog& log : run.logs) {
    html += str("<details class='card'", log.num_errors > 0 ? " open" : "", "><summary>rank ",
                log.rank, ": ", log.num_lines, " lines, ", log.num_warnings, " warnings, ",
                log.num_errors, " errors</summary>");
    if (!log.notable.empty())
      html += "<p class='note'>Warnings and errors</p>" + lines(log.notable);
    html += "<p class='note'>The end</p>" + lines(log.tail) + "</details>";
  }
  return html + "</section>";
}

constexpr std::size_t kMostRows = 100;

std::string cell(double seconds) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3f", seconds * 1e3);
  return str("<td class='number'>", text, "</td>");
}

// Where the time of a step goes, unit by unit.
std::string time_section(const LoggedRun& run) {
  if (!run.diagnostics || run.diagnostics->times.empty()) return "";
  std::vector<UnitTime> times = run.diagnostics->times;
  std::stable_sort(times.begin(), times.end(),
                   [](const UnitTime& a, const UnitTime& b) { return a.sum_s() > b.sum_s(); });
  std::string html =
      str("<section><h2>Time per unit</h2><p class='note'>Milliseconds of a step on rank 0, "
          "the longest first",
          times.size() > kMostRows ? str("; ", kMostRows, " of ", times.size()) : "",
          ".</p><div class='scroll'><table id='times'><tr><th>unit</th><th>class</th>");
  for (const char* name : {"gather wait", "forward", "backward", "reduce wait"})
    html += str("<th class='number'>", name, "</th>");
  html += "</tr>";
  if (times.size() > kMostRows) times.resize(kMostRows);
  for (const UnitTime& time : times)
    html += str("<tr><td>", escaped(time.unit), "</td><td>", escaped(time.class_name), "</td>",
                cell(time.gather_wait_s), cell(time.forward_s), cell(time.backward_s),
                cell(time.reduce_wait_s), "</tr>");
  return html + "</table></div></section>";
}

// The ranks at one point of one batch; the page shows the one that needs most.
struct PointRow {
  const MemoryPoint* most = nullptr;
  std::int64_t least_peak_bytes = 0;
  std::int64_t num_ranks = 0;
};

std::vector<PointRow> rows_of(const std::vector<MemoryPoint>& points) {
  std::vector<PointRow> rows;
  std::map<std::pair<std::int64_t, std::string>, std::size_t> places;
  for (const MemoryPoint& point : points) {
    const auto [place, is_new] = places.try_emplace({point.batch, point.point}, rows.size());
    if (is_new) rows.push_back({&point, point.peak_bytes, 0});
    PointRow& row = rows[place->second];
    if (point.peak_bytes > row.most->peak_bytes) row.most = &point;
    row.least_peak_bytes = std::min(row.least_peak_bytes, point.peak_bytes);
    ++row.num_ranks;
  }
  return rows;
}

std::string point_table(const std::vector<MemoryPoint>& points) {
  const std::vector<PointRow> rows = rows_of(points);
  std::int64_t most = 1;
  for (const PointRow& row : rows) most = std::max(most, row.most->peak_bytes);
  std::string html =
      "<p class='note'>The rank with the highest peak at each point.</p><div class='scroll'><table "
      "id='memory'><tr><th class='number'>batch</th><th>point</th><th class='number'>rank</th><th "
      "class='number'>held</th><th class='number'>peak</th><th></th><th class='number'>least peak "
      "of a rank</th><th>what it points to</th></tr>";
  for (const PointRow& row : rows)
    html += str("<tr><td class='number'>", row.most->batch, "</td><td>", escaped(row.most->point),
                "</td><td class='number'>", row.most->rank, "</td><td class='number'>",
                format_bytes(row.most->current_bytes), "</td><td class='number'>",
                format_bytes(row.most->peak_bytes),
                "</td><td class='bar'><div style='width:", row.most->peak_bytes * 100 / most,
                "%'></div></td><td class='number'>", format_bytes(row.least_peak_bytes),
                "</td><td>", escaped(row.most->hint), "</td></tr>");
  return html + "</table></div>";
}

std::string rank_table(const std::vector<RankBytes>& ranks) {
  std::string html =
      "<h3>Parameters per rank</h3><div class='scroll'><table id='ranks'><tr><th "
      "class='number'>rank</th><th class='number'>trainable</th><th class='number'>frozen</th><th "
      "class='number'>of "
      "both, padding</th></tr>";
  for (const RankBytes& rank : ranks)
    html += str("<tr><td class='number'>", rank.rank, "</td><td class='number'>",
                format_bytes(rank.trainable_bytes), "</td><td class='number'>",
                format_bytes(rank.frozen_bytes), "</td><td class='number'>",
                format_bytes(rank.padding_bytes), "</td></tr>");
  return html + "</table></div>";
}

// Memory at the points of the first batches, and what each rank holds between steps.
std::string memory_section(const LoggedRun& run) {
  if (!run.diagnostics) return "";
  std::string html = "<section><h2>Memory by phase</h2>";
  html += run.diagnostics->memory.empty()
              ? "<p class='none'>No batch was measured (log.diagnostics.batches).</p>"
              : point_table(run.diagnostics->memory);
  if (!run.diagnostics->ranks.empty()) html += rank_table(run.diagnostics->ranks);
  return html + "</section>";
}

constexpr std::size_t kMostDepth = 32;    // deeper names hang below as they are
constexpr std::size_t kMostUnits = 5000;  // a page with more is of no use

struct Node {
  std::vector<std::pair<std::string, std::unique_ptr<Node>>> children;  // in the order of the units
  std::vector<const Unit*> units;
  std::int64_t num_units = 0, trainable_numel = 0, frozen_numel = 0;  // with everything below

  Node& child(const std::string& name) {
    for (auto& [known, node] : children)
      if (known == name) return *node;
    return *children.emplace_back(name, std::make_unique<Node>()).second;
  }
  void count(const Unit& unit) {
    ++num_units;
    for (const UnitGroup& group : unit.groups)
      (group.trainable ? trainable_numel : frozen_numel) += group.numel;
  }
};

void place(const Unit& unit, Node& root) {
  Node* node = &root;
  node->count(unit);
  std::string rest = unit.name;
  for (std::size_t depth = 1; !rest.empty(); ++depth) {
    const std::size_t dot = depth < kMostDepth ? rest.find('.') : std::string::npos;
    node = &node->child(rest.substr(0, dot));
    node->count(unit);
    rest = dot == std::string::npos ? "" : rest.substr(dot + 1);
  }
  node->units.push_back(&unit);
}

std::string unit_html(const Unit& unit) {
  std::string html;
  for (const UnitGroup& group : unit.groups)
    html += str("<div class='unit'>", escaped(group.name), ": ", format_count(group.numel), " ",
                escaped(group.dtype), group.trainable ? " trainable" : " frozen",
                group.resident ? ", resident" : "", ", ", format_bytes(group.shard_bytes),
                " per rank</div>");
  return html;
}

std::string node_html(const std::string& name, const Node& node, bool open) {
  std::string title = str("<b>", escaped(name), "</b>");
  for (const Unit* unit : node.units) {
    title += str("<span class='tag'>", escaped(unit->class_name), "</span>");
    if (unit->checkpointed) title += "<span class='tag'>checkpointed</span>";
  }
  if (!node.children.empty())
    title += str(" <span class='note'>", node.num_units, node.num_units == 1 ? " unit" : " units",
                 ", ", format_count(node.trainable_numel), " trainable, ",
                 format_count(node.frozen_numel), " frozen</span>");
  std::string html = str("<details", open ? " open" : "", "><summary>", title, "</summary>");
  for (const Unit* unit : node.units) html += unit_html(*unit);
  for (const auto& [child_name, child] : node.children)
    html += node_html(child_name, *child, false);
  return html + "</details>";
}

// The units of the model as a tree along their dotted names, with what each holds.
std::string unit_section(const LoggedRun& run) {
  if (!run.diagnostics) return "";
  std::string html = "<section><h2>Units</h2>";
  const auto& units = run.diagnostics->units;
  if (units.empty()) return html + "<p class='none'>No unit was recorded.</p></section>";
  Node root;
  for (std::size_t i = 0; i < units.size() && i < kMostUnits; ++i) place(units[i], root);
  html += str("<p class='note'>", units.size(),
              units.size() == 1 ? " unit: " : " units: ", format_count(root.trainable_numel),
              " elements train, ", format_count(root.frozen_numel), " are frozen.</p>");
  if (units.size() > kMostUnits)
    html += str("<p class='bad'>Only the first ", kMostUnits, " are shown.</p>");
  html += "<div id='units'>";
  for (const Unit* unit : root.units)  // the model itself
    html += str("<div>", escaped(unit->class_name), "</div>", unit_html(*unit));
  for (const auto& [name, node] : root.children) html += node_html(name, *node, true);
  return html + "</div></section>";
}

}  // namespace

std::string report_html(const LoggedRun& run) {
  return page_html(
      run.name, str(summary_section(run), problem_section(run), curve_sections(run),
                    score_section(run), phase_section(run), memory_section(run), unit_section(run),
                    time_section(run), settings_section(run), log_section(run)));
}

}  // namespace floe::report
