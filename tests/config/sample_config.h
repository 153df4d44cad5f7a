// A configuration with a field of every kind, for the tests and the fuzz targets.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "floe/comm/dist_config.h"
#include "floe/schema/schema.h"
#include "floe/strategy/strategy_config.h"

namespace floe::test {

struct RunConfig {
  std::string name, dir = "runs";
  std::int64_t seed = 0;
};

struct ClipConfig {
  std::optional<double> norm = 1.0, value;
};

struct OptimizerConfig {
  std::string type = "adamw";
  double lr = 1e-4;
  std::array<double, 2> betas{0.9, 0.999};
  std::vector<std::string> decay{"*gated_cross_attn*"};
};

struct TrainConfig {
  std::int64_t steps = 1000;
  std::optional<std::vector<std::string>> trainable;
  bool packed = true;
  ClipConfig clip;
  OptimizerConfig optimizer;
};

struct PhaseConfig {
  std::string name;
  std::vector<std::string> train;
  int steps = 100;
};

struct LoraConfig {
  std::int64_t rank = 16;
  double dropout = 0;
};

struct SampleConfig {
  RunConfig run;
  DistConfig dist;
  TrainConfig train;
  std::vector<PhaseConfig> phases;
  std::optional<LoraConfig> lora;
  std::map<std::string, double> weights;
  StrategyConfig strategy;
  config::Value extra;
};

// The sharding strategies there are, as a user reads them.
inline std::string strategies() {
  std::vector<std::string_view> names;
  for (const shard::StrategyEntry& entry : shard::kStrategies) names.push_back(entry.name);
  return join(names);
}

void describe(config::Schema<RunConfig>& s);
void describe(config::Schema<ClipConfig>& s);
void describe(config::Schema<OptimizerConfig>& s);
void describe(config::Schema<TrainConfig>& s);
void describe(config::Schema<PhaseConfig>& s);
void describe(config::Schema<LoraConfig>& s);
void describe(config::Schema<SampleConfig>& s);

}  // namespace floe::test
