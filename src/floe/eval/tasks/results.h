// What an evaluation found: as JSON, as a table, and over the checkpoints of a run.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "floe/eval/tasks/judge.h"

namespace floe::eval {

// A model, a task and a number of shots.
struct TaskResult {
  std::string model;       // as it was named
  std::string checkpoint;  // whose weights were used
  std::int64_t step = -1;  // of that checkpoint; -1: unknown
  std::string task, metric;
  std::int64_t shots = 0;
  std::vector<std::pair<std::int64_t, TrialScore>> trials;  // with their seeds
};

// One object per result, with mean, stddev and, of two trials and more, the interval of 95%. What
// is not a number is null.
nlohmann::ordered_json results_json(const std::vector<TaskResult>& results);

// `found` with what the text of an earlier results.json has of other checkpoints, tasks and shots
// in front. A text that is no such file counts as none.
nlohmann::ordered_json merged_results(const std::string& before,
                                      const nlohmann::ordered_json& found);

// Columns of text: a line per result, and for several checkpoints the curve of each task.
std::string results_table(const std::vector<TaskResult>& results);

}  // namespace floe::eval
