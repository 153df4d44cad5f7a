// Scores of tasks that `floe eval` has left in the folder of a run: RUN/eval/results.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace floe::report {

constexpr const char* kScoresFolder = "eval";
constexpr const char* kScoresFile = "results.json";

struct LoggedScore {
  std::string model, checkpoint, task, metric;
  std::optional<std::int64_t> step;  // of the checkpoint
  std::int64_t shots = 0;
  std::optional<double> mean;  // nothing: there was nothing to judge by
  std::optional<std::pair<double, double>> interval;
  std::int64_t asked = 0, judged = 0;  // of all trials
};

// By task, shots and step. Throws DataError for what is no such file.
std::vector<LoggedScore> read_scores(const std::string& path);

}  // namespace floe::report
