// A plan of a run: `floe plan` for a configuration of `floe train`.
#pragma once

#include <vector>

#include "floe/plan/report.h"
#include "floe/train/run_config.h"

namespace floe::train {

// Of a training configuration, what a plan depends on; the rest is there and not looked at.
struct PlanRunConfig : plan::PlanSettings {
  models::ModelConfig model;
  std::vector<PhaseConfig> phases;
  config::Value run, data, precision, checkpoint, log;
};
void describe(config::Schema<PlanRunConfig>& s);

config::Loaded<PlanRunConfig> load_plan_run(const config::Layers& layers);

// Builds the model without memory; reads only the headers of its files.
plan::PlanSubject subject_of(const PlanRunConfig& config);

}  // namespace floe::train
