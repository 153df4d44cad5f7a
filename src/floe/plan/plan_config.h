// What `floe plan` reads: a configuration of `floe train`, or that of a model which exists only as
// sizes; and how many ranks there are.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "floe/comm/dist_config.h"
#include "floe/config/load.h"
#include "floe/data/data_config.h"
#include "floe/models/model_config.h"
#include "floe/schema/schema.h"
#include "floe/strategy/strategy_config.h"
#include "floe/train/train_config.h"

namespace floe::plan {

// A model that exists only as sizes (models::TransformerSize).
struct ModelConfig {
  std::string type;
  std::int64_t vocab = 0, dim = 0, layers = 0, heads = 0, context = 0;
  std::int64_t mlp_ratio = 4;
  std::int64_t adapter = 0;
  bool tied = false;
  double dropout = 0;
};
void describe(config::Schema<ModelConfig>& s);

// What every plan depends on beside its model.
struct PlanSettings {
  std::optional<std::int64_t> world;
  train::TrainConfig train;
  StrategyConfig strategy;
  DistConfig dist;

  // `world`, else `dist.world_size`, else 1.
  int world_size() const;
  // Of `world`: empty when it agrees with `dist.world_size`.
  std::string world_problem() const;
};

// Describes the settings as keys of a configuration that has them.
template <std::derived_from<PlanSettings> Config>
void describe_settings(config::Schema<Config>& s) {
  s.template field<std::optional<std::int64_t>>("world", &Config::world,
                                                "Number of ranks; null is dist.world_size, else 1")
      .at_least(1)
      .at_most(100'000);
  s.template section<train::TrainConfig>("train", &Config::train, "What trains");
  s.template section<StrategyConfig>("strategy", &Config::strategy,
                                     "How the model's state is spread over the ranks");
  s.template section<DistConfig>("dist", &Config::dist, "How the ranks find each other");
  s.check("world", [](const Config& c) { return c.world_problem(); });
}

struct PlanConfig : PlanSettings {
  ModelConfig model;
};
void describe(config::Schema<PlanConfig>& s);

// Of a training configuration, what a plan depends on; the rest is there and not looked at.
struct RunPlanConfig : PlanSettings {
  models::ModelConfig model;
  std::vector<train::PhaseConfig> phases;
  config::Value run, data, precision, checkpoint, log;
};
void describe(config::Schema<RunPlanConfig>& s);

// Throw ConfigError. Paths of a run's model are absolute afterwards.
config::Loaded<PlanConfig> load_plan_config(const config::Layers& layers);
config::Loaded<RunPlanConfig> load_run_plan_config(const config::Layers& layers);

// What such a run reads, with absolute paths. Throws ConfigError where the configuration has no
// data, and for files that are not there.
DataConfig data_of(const config::Loaded<RunPlanConfig>& loaded);
std::uint64_t seed_of(const RunPlanConfig& config);

}  // namespace floe::plan
