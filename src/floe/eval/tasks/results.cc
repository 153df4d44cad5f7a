#include "floe/eval/tasks/results.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <set>
#include <sstream>
#include <tuple>

#include "floe/core/str.h"
#include "floe/core/table.h"
#include "floe/eval/metrics/spread.h"

namespace floe::eval {
namespace {

using Ordered = nlohmann::ordered_json;

Ordered number(double value) { return std::isfinite(value) ? Ordered(value) : Ordered(); }

Spread spread_of_trials(const TaskResult& result) {
  std::vector<double> scores;
  for (const auto& [seed, trial] : result.trials) scores.push_back(trial.score);
  return spread_of(scores);
}

Ordered trial_json(std::int64_t seed, const TrialScore& trial) {
  Ordered json{{"seed", seed},
               {"score", number(trial.score)},
               {"asked", trial.asked},
               {"judged", trial.judged}};
  for (const auto& [name, value] : trial.others) json["others"][name] = number(value);
  for (const auto& [reason, count] : trial.problems) json["problems"][reason] = count;
  if (!trial.first_problems.empty()) json["first_problems"] = trial.first_problems;
  return json;
}

std::string fixed(double value) {
  if (!std::isfinite(value)) return "-";
  std::ostringstream out;
  out << std::fixed << std::setprecision(std::abs(value) < 2 ? 4 : 2) << value;
  return out.str();
}

std::string problems_text(const TaskResult& result) {
  std::map<std::string, std::int64_t> sums;
  for (const auto& [seed, trial] : result.trials)
    for (const auto& [reason, count] : trial.problems) sums[reason] += count;
  std::vector<std::string> parts;
  for (const auto& [reason, count] : sums) parts.push_back(str(reason, " ", count));
  return join(parts, ", ");
}

}  // namespace

Ordered results_json(const std::vector<TaskResult>& results) {
  Ordered all = Ordered::array();
  for (const TaskResult& result : results) {
    Ordered json{{"model", result.model}, {"checkpoint", result.checkpoint}};
    json["step"] = result.step < 0 ? Ordered() : Ordered(result.step);
    json["task"] = result.task;
    json["metric"] = result.metric;
    json["shots"] = result.shots;
    const Spread spread = spread_of_trials(result);
    json["mean"] = number(spread.mean);
    json["stddev"] = number(spread.stddev);
    json["interval"] = Ordered();
    if (spread.half_width)
      json["interval"] = {spread.mean - *spread.half_width, spread.mean + *spread.half_width};
    json["trials"] = Ordered::array();
    for (const auto& [seed, trial] : result.trials)
      json["trials"].push_back(trial_json(seed, trial));
    all.push_back(std::move(json));
  }
  return Ordered{{"results", std::move(all)}};
}

Ordered merged_results(const std::string& before, const Ordered& found) {
  constexpr std::array<const char*, 3> kKeys{"checkpoint", "task", "shots"};
  const Ordered earlier = Ordered::parse(before, nullptr, /*allow_exceptions=*/false);
  const Ordered& now = found.at("results");
  Ordered all = Ordered::array();
  if (earlier.is_object() && earlier.contains("results") && earlier["results"].is_array())
    for (const Ordered& old : earlier["results"]) {
      const auto is_same = [&](const Ordered& result) {
        return std::all_of(kKeys.begin(), kKeys.end(), [&](const char* key) {
          return old.contains(key) && old[key] == result[key];
        });
      };
      if (old.is_object() && std::none_of(now.begin(), now.end(), is_same)) all.push_back(old);
    }
  for (const Ordered& result : now) all.push_back(result);
  return Ordered{{"results", std::move(all)}};
}

std::string results_table(const std::vector<TaskResult>& results) {
  std::set<std::string> checkpoints;
  for (const TaskResult& result : results) checkpoints.insert(result.checkpoint);
  const bool several = checkpoints.size() > 1;
  Table table({Align::left, Align::left, Align::left, Align::right, Align::right, Align::left,
               Align::right, Align::left},
              0);
  table.row({several ? "checkpoint" : "", "task", "metric", "shots", "score", "95%", "judged",
             "left out"});
  // By task and shots, so that the checkpoints of a run stand below each other: a curve.
  std::vector<const TaskResult*> order;
  for (const TaskResult& result : results) order.push_back(&result);
  std::stable_sort(order.begin(), order.end(), [](const TaskResult* a, const TaskResult* b) {
    return std::tie(a->task, a->shots, a->step) < std::tie(b->task, b->shots, b->step);
  });
  for (const TaskResult* result : order) {
    const Spread spread = spread_of_trials(*result);
    std::int64_t asked = 0, judged = 0;
    for (const auto& [seed, trial] : result->trials) {
      asked += trial.asked;
      judged += trial.judged;
    }
    const std::string name = !several           ? ""
                             : result->step < 0 ? result->model
                                                : str("step ", result->step);
    table.row({name, result->task, result->metric, str(result->shots), fixed(spread.mean),
               spread.half_width ? str("± ", fixed(*spread.half_width)) : "",
               str(judged, "/", asked), problems_text(*result)});
  }
  return table.text();
}

}  // namespace floe::eval
