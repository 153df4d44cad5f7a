// What `floe plan` reads for a model that exists only as sizes: the blocks `model:`, `train:`,
// `strategy:` and `dist:`, and how many ranks there are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "floe/config/dist.h"
#include "floe/config/load.h"
#include "floe/config/strategy.h"
#include "floe/config/train.h"

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

struct PlanConfig {
  std::optional<std::int64_t> world;
  ModelConfig model;
  TrainConfig train;
  StrategyConfig strategy;
  DistConfig dist;

  // `world`, else `dist.world_size`, else 1.
  int world_size() const;
};
void describe(config::Schema<PlanConfig>& s);

// Throws ConfigError.
config::Loaded<PlanConfig> load_plan_config(const config::Layers& layers);

}  // namespace floe::plan
