#include "floe/train/reporting/metric_names.h"

#include <algorithm>
#include <numeric>

#include "floe/core/names.h"

namespace floe::train {
namespace {

// Prepared batches say themselves which sources they are of.
std::vector<std::string> any_source() { return {"laion", "mmc4", "text"}; }

bool is_among(const std::string& name, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Ranked by a metric that only steps with a validation have.
bool ranked_by_validation(const RunConfig& c) {
  const auto& metric = c.checkpoint.keep_best.metric;
  return metric && (is_among(*metric, validation_metrics(c)) || may_be_of_task(c, *metric));
}

// What there is, where only the files of the tasks would tell all of it.
std::vector<std::string> with_tasks(const RunConfig& c, std::vector<std::string> known) {
  if (!c.train.validation.tasks.empty()) known.push_back("val_TASK_METRIC of a task");
  return known;
}

}  // namespace

bool may_be_of_task(const RunConfig& c, const std::string& metric) {
  if (c.train.validation.tasks.empty() || !metric.starts_with("val_")) return false;
  return higher_is_better(metric) || metric.ends_with("_perplexity");
}

std::string task_metric(const std::string& task, const std::string& metric) {
  return str("val_", task, "_", metric);
}

void require_task_metrics(const RunConfig& c, const std::vector<std::string>& of_tasks) {
  std::vector<std::string> known = validation_metrics(c);
  known.insert(known.end(), of_tasks.begin(), of_tasks.end());
  const auto check = [&](const char* key, const std::string& metric) {
    require<ConfigError>(!may_be_of_task(c, metric) || is_among(metric, known), key, " is ", metric,
                         ", which validation does not measure", metrics_there_are(metric, known));
  };
  if (c.checkpoint.keep_best.metric)
    check("checkpoint.keep_best.metric", *c.checkpoint.keep_best.metric);
  if (c.train.stop) check("train.stop.metric", c.train.stop->metric);
  for (const PhaseConfig& phase : c.phases)
    if (phase.until) check("phases.until.metric", phase.until->metric);
}

std::vector<std::string> validation_metrics(const RunConfig& c) {
  const ValidationConfig& validation = c.train.validation;
  if (!validation.tasks.empty() && !validation.holds_data_out()) return {};
  std::vector<std::string> sources;
  if (validation.batches)
    sources = any_source();
  else if (validation.shards.by_source.empty() || validation.shards.by_source.contains(""))
    sources = c.data.sources();
  else
    for (const auto& [source, shards] : validation.shards.by_source) sources.push_back(source);
  std::vector<std::string> names{"val_loss"};
  for (const std::string& source : sources)
    for (const char* what : {"val_loss_", "val_perplexity_"}) names.push_back(what + source);
  return names;
}

std::vector<std::string> step_metrics(const RunConfig& c) {
  std::vector<std::string> names;
  for (const std::string& source : c.data.batches ? any_source() : c.data.sources())
    names.push_back("loss_" + source);
  return names;
}

std::string metrics_there_are(const std::string& wanted, const std::vector<std::string>& known) {
  const std::string near = did_you_mean(wanted, known);
  return str(near.empty() ? ";" : near, near.empty() ? " there are " : " There are ", join(known));
}

std::string keep_best_problem(const RunConfig& c) {
  const CheckpointConfig& saves = c.checkpoint;
  if (!saves.keep_best.metric) return "";
  const std::string& metric = *saves.keep_best.metric;
  const bool validates = c.train.validation.every_steps.has_value();
  std::vector<std::string> known = step_metrics(c);
  const std::vector<std::string> of_validation = validation_metrics(c);
  if (!validates && is_among(metric, of_validation))
    return str("has keep_best by ", metric,
               ", but there is no validation; set train.validation, or use one of ", join(known));
  if (validates) known.insert(known.begin(), of_validation.begin(), of_validation.end());
  if (!is_among(metric, known) && !may_be_of_task(c, metric))
    return str("has keep_best by ", metric, ", which the run does not measure",
               metrics_there_are(metric, with_tasks(c, known)));
  if (higher_is_better(metric) && saves.keep_best.better == checkpoint::Better::lower)
    return str("has keep_best by ", metric,
               ", which is better when it is higher; set keep_best.better to higher");
  if (saves.every_epochs) return "";
  if (!saves.every_steps)
    return "has keep_best, but neither every_steps nor every_epochs: only the last step is saved, "
           "so "
           "there is nothing to choose from";
  if (!ranked_by_validation(c) || !c.train.steps) return "";
  // The last step is saved and validated whatever its number; it is also the newest, which stays.
  const std::int64_t save = *saves.every_steps, validate = *c.train.validation.every_steps;
  const std::int64_t both = std::lcm(save, validate), end = *c.train.steps;
  if (save < end && validate < end && both > end)
    return str("has keep_best by ", metric, ", but saves every ", save,
               " steps and validations every ", validate, " first meet at step ", both,
               ", after the last one, so no save could be ranked; make checkpoint.every_steps a "
               "multiple of train.validation.every_steps");
  return "";
}

std::string ranked_saves(const RunConfig& c) {
  if (!ranked_by_validation(c) || !c.train.validation.every_steps) return "";
  const std::int64_t validate = *c.train.validation.every_steps;
  const auto& save = c.checkpoint.every_steps;
  if (!c.checkpoint.every_epochs && save && *save % validate == 0) return "";
  const std::int64_t both = save ? std::lcm(*save, validate) : validate;
  return str(
      "checkpoint.keep_best ranks saves by ", *c.checkpoint.keep_best.metric,
      ", so only those at steps with a validation: ",
      c.checkpoint.every_epochs ? str("multiples of ", validate) : str("every ", both, " steps"),
      ", and the last one; the others go when they are no longer among the newest");
}

}  // namespace floe::train
