// The sets of a run at work: each has an optimizer of its own, its learning rate and its turns. A
// run without phases has one set.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/optim/lr_schedule.h"
#include "floe/optim/optimizer.h"
#include "floe/shard/engine.h"
#include "floe/train/phases/phase_schedule.h"
#include "floe/train/run_config.h"

namespace floe::train {

// As ShardOptions::sets has them.
std::vector<shard::ParameterSet> parameter_sets(const std::vector<PhaseConfig>& phases);

class Phases {
 public:
  // The engine has the sets of the same configuration.
  Phases(const RunConfig& config, shard::Engine& engine);

  bool several() const { return optimizers_.size() > 1; }
  // Which set trains when.
  PhaseSchedule& schedule() { return schedule_; }
  const PhaseSchedule& schedule() const { return schedule_; }
  // Of the set that trains now, and of all sets.
  optim::Optimizer& optimizer() const { return *optimizers_[engine_.active_set()]; }
  std::vector<optim::Optimizer*> optimizers() const;

  // Before the first step: schedules that fall know where they end.
  void plan_rates(std::int64_t total_steps);
  // The learning rate of the set that trains now, without and with its schedule; `step` updates of
  // the run are done.
  double base_lr() const { return base_lr(engine_.active_set()); }
  double lr(std::int64_t step) const;
  // The update of a step, after `step` others: the set's optimizer, and its turn goes on.
  void update(std::int64_t step, double factor);

  // What a checkpoint holds of it: null without phases.
  nlohmann::json save() const;
  // All ranks, after a checkpoint was loaded that has this: the same set trains, at the same place.
  void restore(const nlohmann::json& saved);

 private:
  const RunConfig& config_;
  shard::Engine& engine_;
  PhaseSchedule schedule_;
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers_;  // by set
  struct Rate {
    optim::LrSchedule schedule;
    bool over_own_updates = false;  // of its set; else over those of the run
  };
  double base_lr(std::size_t set) const;
  double schedule_factor(std::int64_t step) const;

  std::vector<Rate> rates_;  // by set
};

}  // namespace floe::train
