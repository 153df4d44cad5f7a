// The whole configuration of `floe train`.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/checkpoint/checkpoint_config.h"
#include "floe/comm/dist_config.h"
#include "floe/config/load.h"
#include "floe/data/data_config.h"
#include "floe/models/model_config.h"
#include "floe/strategy/strategy_config.h"
#include "floe/train/reporting/log_config.h"
#include "floe/train/train_config.h"

namespace floe::train {

struct RunSection {
  // Where the data of a resumed run goes on.
  enum class ResumeData {
    keep,     // where the checkpoint was
    restart,  // from its beginning
  };

  std::string name = "run", dir = "runs";
  std::uint64_t seed = 0;
  std::string resume = "auto";  // auto, never, or the path of a checkpoint to begin from
  ResumeData resume_data = ResumeData::keep;
  double stop_grace_s = 25;  // from a signal that stops the run until its state is on disk

  std::string folder() const { return dir + "/" + name; }
};
inline auto enum_names(RunSection::ResumeData) {
  using enum RunSection::ResumeData;
  return std::to_array<std::pair<std::string_view, RunSection::ResumeData>>(
      {{"continue", keep}, {"restart", restart}});
}
void describe(config::Schema<RunSection>& s);

struct RunConfig {
  RunSection run;
  DistConfig dist;
  models::ModelConfig model;
  DataConfig data;
  TrainConfig train;
  std::vector<PhaseConfig> phases;
  StrategyConfig strategy;
  PrecisionConfig precision;
  CheckpointConfig checkpoint;
  LogConfig log;

  bool computes_in_fp16() const;
};
void describe(config::Schema<RunConfig>& s);

// Paths of the model become absolute; see Note [Relative paths]. Throws ConfigError for one that is
// not found. The layers are those of a run, or of a file that is a model's block.
void resolve_model_paths(models::ModelConfig& model, const config::Layers& layers);

// With the paths of all inputs absolute (inputs.h), as far as they are found.
config::Loaded<RunConfig> load_run_config(const config::Layers& layers);

}  // namespace floe::train
