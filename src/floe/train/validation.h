// What a run is judged by while it trains: the loss on held-out data, and scores of tasks.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "floe/data/loader/held_out.h"
#include "floe/models/build.h"
#include "floe/shard/engine.h"
#include "floe/train/run_config.h"
#include "floe/train/validation_tasks.h"

namespace floe::train {

class Validation {
 public:
  using Metrics = std::vector<std::pair<std::string, double>>;

  // Collective: opens the held-out data. Throws ConfigError when a source has no usable sample on
  // any rank, or a task cannot be asked. `stop`, once true on any rank, ends a run() between two
  // batches.
  Validation(const RunConfig& config, const models::BuiltModel& built, shard::Engine& engine,
             std::vector<eval::TaskData> tasks, const std::atomic<bool>& stop);

  // Collective: goes once over the held-out data of all ranks, without gradients. Ranks may have
  // different numbers of batches. For each source, val_loss_<source>: the mean over the labelled
  // tokens of all ranks, and val_perplexity_<source>; val_loss: their sum by the weights of
  // training. Then val_<task>_<metric> of each task. Nothing, on all ranks, when it was stopped.
  std::optional<Metrics> run();

 private:
  void require_samples();
  // Those of the held-out data; nothing: stopped.
  std::optional<Metrics> losses();
  // The sums over this rank's batches: losses, then labelled tokens. False: it was stopped.
  bool evaluate(data::HeldOut& held_out, std::vector<double>& sums);
  Metrics metrics_of(const std::vector<double>& sums) const;

  const RunConfig& config_;
  const models::BuiltModel& built_;
  shard::Engine& engine_;
  const std::atomic<bool>& stop_;
  DataConfig held_out_;
  data::LoaderContext context_;
  data::HeldOutOptions options_;
  std::optional<ValidationTasks> tasks_;  // nothing: none
};

// Null when the configuration asks for none. `tasks`: read_validation_tasks.
std::unique_ptr<Validation> make_validation(const RunConfig& config,
                                            const models::BuiltModel& built, shard::Engine& engine,
                                            std::vector<eval::TaskData> tasks,
                                            const std::atomic<bool>& stop);

}  // namespace floe::train
