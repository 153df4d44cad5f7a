// The strategy as it was resolved, in lines for people, each with the place its value comes from.
#pragma once

#include <string>
#include <vector>

#include "floe/config/strategy.h"
#include "floe/config/train.h"
#include "floe/config/value.h"
#include "floe/shard/plan.h"

namespace floe::diag {

struct StrategySettings {
  const StrategyConfig& strategy;
  const PrecisionConfig& precision;
  std::string state_dict_type;  // of checkpoints
  const config::Value& values;  // all settings, with their origins
  int world_size = 1;
};

// Before anything is built.
std::vector<std::string> strategy_lines(const StrategySettings& settings);

// Afterwards: how many modules each entry of strategy.units and strategy.activation_checkpointing
// matched in this model.
std::vector<std::string> match_lines(const StrategyConfig& strategy, const shard::ShardPlan& plan);

}  // namespace floe::diag
