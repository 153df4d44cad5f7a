// The metrics of a run that a configuration may name: for phases that end, runs that stop and
// checkpoints that stay. All of them are numbers of metrics.jsonl; which there are follows from the
// run's configuration, so that they stand here and not in observe/.
#pragma once

#include <string>
#include <vector>

#include "floe/train/run_config.h"

namespace floe::train {

// What validation measures: val_loss, val_loss_SOURCE, val_perplexity_SOURCE, without
// scores of tasks. Whether there is validation is not asked.
std::vector<std::string> validation_metrics(const RunConfig& config);
// What every step measures: loss_SOURCE.
std::vector<std::string> step_metrics(const RunConfig& config);

// val_TASK_METRIC, the score of a task.
std::string task_metric(const std::string& task, const std::string& metric);
// Whether it could be one: what tasks there are, and what they measure, is known when their files
// are read.
bool may_be_of_task(const RunConfig& config, const std::string& metric);
// Then: throws ConfigError where something waits for a score that there is not.
void require_task_metrics(const RunConfig& config, const std::vector<std::string>& of_tasks);

// "; did you mean 'val_loss'? There are val_loss, val_loss_laion"
std::string metrics_there_are(const std::string& wanted, const std::vector<std::string>& known);

// Whether checkpoint.keep_best can do what it says: the end of a sentence that begins with
// "checkpoint", or nothing.
std::string keep_best_problem(const RunConfig& config);
// Which saves keep_best ranks, where it is not all of them; else empty.
std::string ranked_saves(const RunConfig& config);

}  // namespace floe::train
