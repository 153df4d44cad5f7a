// Scores of tasks: a curve for each task with several checkpoints, and all of them as a table.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/observe/report/chart.h"
#include "floe/observe/report/html.h"
#include "floe/observe/report/logged_scores.h"
#include "floe/observe/report/sections.h"

namespace floe::report {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostScoreBytes = std::int64_t{1} << 28;
constexpr std::size_t kMostScores = 1000;  // a table with more is of no use

std::optional<double> number_in(const Json& json) {
  return json.is_number() ? std::optional(json.get<double>()) : std::nullopt;
}

// Small enough to be added up.
std::int64_t integer_in(const Json& json) {
  require<DataError>(json.is_number_integer(), "expected an integer, found ", shown(json));
  const double value = json.get<double>();
  require<DataError>(value >= 0 && value < 1e15, "expected a count, found ", shown(json));
  return json.get<std::int64_t>();
}

LoggedScore read_score(const Json& json) {
  LoggedScore score;
  score.model = json.at("model").get<std::string>();
  score.checkpoint = json.value("checkpoint", "");
  score.task = json.at("task").get<std::string>();
  score.metric = json.at("metric").get<std::string>();
  score.shots = integer_in(json.at("shots"));
  if (json.at("step").is_number_integer()) score.step = integer_in(json.at("step"));
  score.mean = number_in(json.at("mean"));
  if (const Json& interval = json.at("interval"); interval.is_array())
    score.interval = {interval.at(0).get<double>(), interval.at(1).get<double>()};
  for (const Json& trial : json.at("trials")) {
    score.asked += integer_in(trial.at("asked"));
    score.judged += integer_in(trial.at("judged"));
  }
  return score;
}

// A chart of each task of which several checkpoints were asked, with a line for each number of
// shots.
std::string score_charts(const std::vector<LoggedScore>& scores) {
  std::map<std::string, std::map<std::int64_t, Series>> tasks;
  std::map<std::string, std::set<std::int64_t>> steps;
  for (const LoggedScore& score : scores)
    if (score.step && score.mean) {
      const std::string title = str(score.task, " (", score.metric, ")");
      tasks[title][score.shots].add(*score.step, *score.mean);
      steps[title].insert(*score.step);
    }
  std::string charts;
  for (const auto& [title, by_shots] : tasks) {
    if (steps[title].size() < 2) continue;
    Chart chart{.title = title, .note = "Mean over the seeds, at each checkpoint."};
    for (const auto& [shots, series] : by_shots)
      chart.lines.push_back({str("shots ", shots), &series});
    charts += to_html(chart);
  }
  return charts.empty() ? "" : str("<div class='charts'>", charts, "</div>");
}

std::string score_cell(const std::string& text) {
  return str("<td class='number'>", text, "</td>");
}

}  // namespace

std::vector<LoggedScore> read_scores(const std::string& path) {
  const Json file = parse_json(read_text(path, kMostScoreBytes), path);
  std::vector<LoggedScore> scores;
  try {
    for (const Json& result : file.at("results")) scores.push_back(read_score(result));
  } catch (const Json::exception& error) {
    throw DataError(str("'", path, "' is no file of results: ", error.what()));
  } catch (const DataError& error) {
    throw DataError(str("'", path, "' is no file of results: ", error.what()));
  }
  std::stable_sort(scores.begin(), scores.end(), [](const LoggedScore& a, const LoggedScore& b) {
    return std::tie(a.task, a.shots, a.step) < std::tie(b.task, b.shots, b.step);
  });
  return scores;
}

std::string score_section(const LoggedRun& run) {
  if (run.scores.empty()) return "";
  std::string html = str("<section><h2>Tasks</h2>", score_charts(run.scores));
  const std::size_t shown = std::min(run.scores.size(), kMostScores);
  if (shown < run.scores.size())
    html += str("<p class='note'>The first ", shown, " of ", run.scores.size(), ".</p>");
  html +=
      "<div class='scroll'><table id='scores'><tr><th>task</th><th>metric</th><th "
      "class='number'>shots</th><th class='number'>step</th><th class='number'>score</th><th "
      "class='number'>95% interval</th><th class='number'>judged</th></tr>";
  for (std::size_t i = 0; i < shown; ++i) {
    const LoggedScore& score = run.scores[i];
    html += str("<tr><td>", escaped(score.task), "</td><td>", escaped(score.metric), "</td>",
                score_cell(str(score.shots)),
                score_cell(score.step ? str(*score.step) : escaped(score.model)),
                score_cell(score.mean ? short_number(*score.mean) : "-"),
                score_cell(score.interval ? str(short_number(score.interval->first), " to ",
                                                short_number(score.interval->second))
                                          : ""),
                score_cell(str(score.judged, "/", score.asked)), "</tr>");
  }
  return html + "</table></div></section>";
}

}  // namespace floe::report
