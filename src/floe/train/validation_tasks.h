// Tasks of `floe eval` that a run is judged by while it trains: train.validation.tasks.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "floe/eval/run/evaluate.h"
#include "floe/eval/tasks/samples.h"
#include "floe/models/build.h"
#include "floe/shard/engine.h"
#include "floe/train/run_config.h"

namespace floe::train {

// The tasks with their samples, each cut to what a validation asks of it. Throws ConfigError for
// what is wrong with their files, and where the run waits for a score that none of them gives.
std::vector<eval::TaskData> read_validation_tasks(const RunConfig& config);

class ValidationTasks {
 public:
  using Metrics = std::vector<std::pair<std::string, double>>;

  // Collective: throws ConfigError where the model cannot be asked, or ranks have other samples
  // than others.
  ValidationTasks(const RunConfig& config, const models::BuiltModel& built, shard::Engine& engine,
                  std::vector<eval::TaskData> tasks, const std::atomic<bool>& stop);

  // Collective: asks all tasks of the model as it is, which is in evaluation mode; every rank its
  // share, in lockstep (Note [Lockstep]). Scores are the same on all ranks, and on any number of
  // them, up to rounding. Nothing, on all ranks, when a signal stopped one of them.
  std::optional<Metrics> run();

 private:
  // What cannot be asked is told once, not at every validation.
  void warn_of_problems(const std::string& task, const eval::TrialScore& score);
  // Collective: as rank 0 has found them.
  std::vector<double> of_first_rank(std::vector<double> scores) const;

  const models::BuiltModel& built_;
  shard::Engine& engine_;
  const std::atomic<bool>& stop_;
  std::vector<eval::TaskData> tasks_;
  eval::AskedModel model_;
  std::int64_t batch_tokens_;
  std::map<std::string, std::map<std::string, std::int64_t>> problems_;  // of each task
};

}  // namespace floe::train
