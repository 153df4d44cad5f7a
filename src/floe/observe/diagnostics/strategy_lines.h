// The strategy as it was resolved, in lines for people, each with the place its value comes from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "floe/schema/value.h"
#include "floe/shard/plan/plan.h"
#include "floe/strategy/strategy_config.h"

namespace floe::diagnostics {

struct StrategySettings {
  const StrategyConfig& strategy;
  const PrecisionConfig& precision;
  std::string state_dict_type;  // of checkpoints
  const config::Value& values;  // all settings, with their origins
  int world_size = 1;
  std::optional<double> loss_scale;  // the first one; null: the loss is not scaled
};

// Before anything is built: everything, the number types among it.
std::vector<std::string> strategy_lines(const StrategySettings& settings);

// Of these only the number types that are computed, stored and communicated in.
std::vector<std::string> precision_lines(const StrategySettings& settings);

// Afterwards: how many modules of this model each entry of strategy.units matched, and each of
// strategy.activation_checkpointing checkpoints.
std::vector<std::string> match_lines(const StrategyConfig& strategy, const shard::ShardPlan& plan);

}  // namespace floe::diagnostics
