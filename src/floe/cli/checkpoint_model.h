// The model that a checkpoint is of: the configuration of the run that wrote it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "floe/models/model_config.h"

namespace floe::cli {

struct CheckpointModel {
  models::ModelConfig config;
  std::uint64_t seed = 0;
  // Patterns of what the run trained, in any phase; empty: the model's own rule.
  std::vector<std::string> trained;
  std::string origin;  // the file that says so
};

// From `model_yaml` when it is given (as of `floe generate`; paths are relative to it), else from what
// the checkpoint itself says, else from RUN/config.yaml of the run that it lies in. Null when nothing
// tells.
std::optional<CheckpointModel> find_checkpoint_model(const std::string& checkpoint,
                                                     const std::string& model_yaml);

// Throws CheckpointError when the checkpoint names the frozen weights that it was trained on, and those
// of the model are not these.
void check_frozen_base(const std::string& checkpoint, const models::ModelConfig& config);

}  // namespace floe::cli
