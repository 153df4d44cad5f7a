// A checkpoint opened for reading, whoever wrote it, as sources under the model's own names.
//
// Note [Foreign checkpoints]
// Weights lie under `model.`, `state_dict.`, `model_state_dict.`, perhaps below `module.`, or bare;
// an optimizer's state under `….state.NAME.KEY`, or under numbers that count the parameters of its
// groups; those of several sets under `optimizers.SET.state.…`. What is there tells which.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "floe/checkpoint/checkpointer.h"
#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/run_state.h"

namespace floe::checkpoint {

// What an optimizer keeps: "exp_avg" → by parameter.
using OptimizerState = std::map<std::string, std::shared_ptr<const TensorSource>>;

struct SavedState {
  std::string path;
  std::optional<Manifest> manifest;                  // of floe's own
  std::shared_ptr<const TensorSource> weights;       // by parameter
  std::map<std::string, OptimizerState> optimizers;  // by set; those that have state
  std::shared_ptr<const TensorSource> ema;           // null: none
  nlohmann::json shared;                             // the trainer's, as far as the file tells
  std::int64_t step = 0;
};

// Opens a directory of torch.distributed.checkpoint or a file of weights. Throws CheckpointError or
// DataError.
SavedState open_saved(const std::string& path, const RunState& run, const ForeignNames& foreign);

}  // namespace floe::checkpoint
