// What `floe plan` reads for a model that exists only as sizes: the blocks `model:`, `train:`,
// `strategy:` and `dist:`, and how many ranks there are.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/config/dist.h"
#include "floe/config/load.h"
#include "floe/config/strategy.h"

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

struct OptimizerConfig {
  enum class Type { adamw, sgd };

  Type type = Type::adamw;
  double momentum = 0;  // of sgd
  // How many values it keeps per trainable element.
  int num_moments() const;
};
inline auto enum_names(OptimizerConfig::Type) {
  using enum OptimizerConfig::Type;
  return std::to_array<std::pair<std::string_view, OptimizerConfig::Type>>(
      {{"adamw", adamw}, {"sgd", sgd}});
}
void describe(config::Schema<OptimizerConfig>& s);

struct TrainConfig {
  std::optional<std::vector<std::string>> trainable;  // null: the model's own rule
  OptimizerConfig optimizer;
};
void describe(config::Schema<TrainConfig>& s);

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
