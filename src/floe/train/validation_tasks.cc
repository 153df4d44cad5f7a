#include "floe/train/validation_tasks.h"

#include <ATen/ops/tensor.h>

#include <cmath>
#include <set>

#include "floe/core/log.h"
#include "floe/core/str.h"
#include "floe/eval/tasks/prompts.h"
#include "floe/generation/generate.h"
#include "floe/generation/lockstep.h"
#include "floe/train/reporting/metric_names.h"
#include "floe/train/step/precision.h"

namespace floe::train {
namespace {

// One trial of a small part of the task.
eval::TaskConfig cut(eval::TaskConfig task, const ValidationTask& wanted) {
  if (!wanted.name.empty()) task.name = wanted.name;
  task.samples = wanted.samples;
  task.shots = {wanted.shots.value_or(task.shots.front())};
  task.seeds = {wanted.seed.value_or(task.seeds.front())};
  return task;
}

eval::TaskData read_task(const ValidationTask& wanted) try {
  const eval::TaskConfig task = cut(eval::load_task(wanted.file, {}), wanted);
  require<ConfigError>(is_metric_name(task.name), "'", wanted.file, "' is named '", task.name,
                       "', which cannot be part of a metric's name; give it a 'name' of letters, "
                       "digits, '_', '-' and '.' beside 'file'");
  require<ConfigError>(task.context != "rices", "'", wanted.file,
                       "' has context: rices, which would look at all training pictures at every "
                       "validation; use a file with context: random here");
  eval::TaskData data = eval::read_task_data(task);
  require<ConfigError>(!data.tests.empty(), "'", wanted.file, "' has no test samples");
  eval::check_prompts(data);
  return data;
} catch (const ConfigError& error) {
  throw ConfigError(str("train.validation.tasks: ", error.what()));
} catch (const DataError& error) {  // it can be mended before the run
  throw ConfigError(str("train.validation.tasks: ", error.what()));
}

std::string metric_name(const eval::TaskConfig& task) {
  return task_metric(task.name, task.metric);
}

}  // namespace

std::vector<eval::TaskData> read_validation_tasks(const RunConfig& config) {
  std::vector<eval::TaskData> tasks;
  std::vector<std::string> metrics;
  std::set<std::string> names;
  for (const ValidationTask& wanted : config.train.validation.tasks) {
    tasks.push_back(read_task(wanted));
    const std::string& name = tasks.back().task.name;
    require<ConfigError>(names.insert(name).second, "train.validation.tasks: two tasks are named '",
                         name, "'; give one another 'name'");
    metrics.push_back(metric_name(tasks.back().task));
  }
  require_task_metrics(config, metrics);
  return tasks;
}

ValidationTasks::ValidationTasks(const RunConfig& config, const models::BuiltModel& built,
                                 shard::Engine& engine, std::vector<eval::TaskData> tasks,
                                 const std::atomic<bool>& stop)
    : built_(built),
      engine_(engine),
      stop_(stop),
      tasks_(std::move(tasks)),
      model_(
          eval::asked_model({built, engine.world().device(), compute_dtype(config)}, config.model)),
      batch_tokens_(config.train.validation.task_batch_tokens) {
  generation::require_decoder(*built.model);
  std::vector<comm::NamedText> trials;
  for (const eval::TaskData& task : tasks_)
    for (comm::NamedText& trial : eval::trials_of(task, model_)) trials.push_back(std::move(trial));
  if (engine.world().rank() == 0)
    for (const eval::TaskData& task : tasks_) eval::warn_of_rules(task, model_);
  engine.world().require_same("train.validation.tasks", trials,
                              "give all ranks the same files of the tasks");
}

void ValidationTasks::warn_of_problems(const std::string& task, const eval::TrialScore& score) {
  if (engine_.world().rank() != 0 || problems_[task] == score.problems) return;
  problems_[task] = score.problems;
  std::vector<std::string> parts;
  for (const auto& [reason, count] : score.problems) parts.push_back(str(reason, " ", count));
  log::warn("validation task '", task, "': ", score.asked - score.judged, " of ", score.asked,
            " samples are in no score (", join(parts, ", "),
            "), such as: ", score.first_problems.empty() ? "" : score.first_problems.front());
}

std::vector<double> ValidationTasks::of_first_rank(std::vector<double> scores) const {
  comm::World& world = engine_.world();
  if (world.size() == 1) return scores;
  // A task ends a phase on all ranks at once, so not one bit of it may differ.
  if (world.rank() != 0) scores.assign(scores.size(), 0.0);
  const at::Tensor on_device = at::tensor(scores, at::kDouble).to(world.device());
  world.group()->all_reduce(on_device, comm::Reduce::sum, "scores of tasks").wait();
  const at::Tensor host = world.read(on_device);
  return {host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel()};
}

std::optional<ValidationTasks::Metrics> ValidationTasks::run() {
  comm::World& world = engine_.world();
  eval::AskedModel model = model_;
  generation::Lockstep lockstep(
      *built_.model, model.ready.device, model.ready.dtype,
      [this](const std::vector<bool>& own) { return engine_.any_rank_has(own); }, &stop_);
  eval::EvaluateOptions options;
  options.how = {.batch_tokens = batch_tokens_, .stop = &stop_, .quiet = true};
  if (world.size() > 1) {
    model.ready.lockstep = &lockstep;
    options.how.world = &world;
  }
  std::vector<double> scores;
  for (const eval::TaskData& task : tasks_) {
    const auto results = eval::evaluate(task, model, options);
    if (!results) return std::nullopt;
    const eval::TrialScore& score = results->front().trials.front().second;
    warn_of_problems(task.task.name, score);
    scores.push_back(score.score);
  }
  scores = of_first_rank(std::move(scores));
  Metrics metrics;
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    const std::string name = metric_name(tasks_[t].task);
    if (!std::isnan(scores[t]))
      metrics.emplace_back(name, scores[t]);
    else if (world.rank() == 0)
      log::warn("validation task '", tasks_[t].task.name,
                "': there was nothing to judge by, so there is no ", name);
  }
  return metrics;
}

}  // namespace floe::train
