#include "floe/report/sections.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/metrics/progress.h"
#include "floe/report/chart.h"
#include "floe/report/html.h"

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

std::string steps_text(const RunFolder& run) {
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
std::size_t world_size(const RunFolder& run) {
  if (run.diagnostics && !run.diagnostics->ranks.empty()) return run.diagnostics->ranks.size();
  return run.logs.size();
}

}  // namespace

std::string summary_section(const RunFolder& run) {
  std::string html = str("<header><h1>", escaped(run.name), "</h1><p>", escaped(run.folder));
  if (run.first_time_s > 0)
    html += str(", ", date_text(run.first_time_s), " to ", date_text(run.last_time_s));
  html += "</p></header><div class='tiles' id='summary'>";
  if (run.num_records > 0) {
    html += tile("steps", steps_text(run));
    if (run.last_time_s > run.first_time_s)
      html += tile("from the first step to the last",
                   metrics::format_duration(run.last_time_s - run.first_time_s));
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

std::string problem_section(const RunFolder& run) {
  if (run.problems.empty()) return "";
  return str("<section id='problems'><h2>Missing or damaged</h2>", list(run.problems),
             "</section>");
}

std::string settings_section(const RunFolder& run) {
  if (run.settings.empty()) return "";
  std::string html =
      "<section><h2>Settings</h2><div class='scroll'><table id='settings'><tr><th>key</th><th>value"
      "</th></tr>";
  for (const auto& [name, value] : run.settings)
    html += str("<tr><td>", escaped(name), "</td><td>", escaped(value), "</td></tr>");
  return html + "</table></div></section>";
}

std::string log_section(const RunFolder& run) {
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

}  // namespace floe::report
