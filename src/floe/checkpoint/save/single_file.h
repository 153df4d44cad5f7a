// Checkpoints that are one file of torch.save: everything (layout full), or what OpenFlamingo keeps
// in checkpoint_N.pt (layout trainable).
//
// Note [checkpoint_N.pt]
// As OpenFlamingo writes it: epoch, model_state_dict, optimizer_state_dict (numbered, as torch's
// own state_dict() has it) and lr_scheduler_state_dict. With several sets, each with a schedule of
// its own, there is optimizer_state_dicts by set instead of the last two.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/checkpoint/checkpointer.h"
#include "floe/checkpoint/save/save_job.h"
#include "floe/io/torch_file/pickle.h"

namespace floe::checkpoint {

// Turns a directory that all ranks have written into the file `target` and its manifest, block by
// block, so that host memory does not grow with the model; the file appears in one step, with its
// manifest already there. Throws CheckpointError or Error.
void make_single_file(const std::string& directory, const SaveJob& job, const std::string& target);

// File tensors with a parameter that trains, by group: in the order in which torch's optimizer
// numbers them.
std::vector<std::vector<const FileTensor*>> numbered_tensors(
    const std::vector<FileTensor>& tensors, const std::vector<optim::ParameterGroup>& groups);

// JSON as Python has it, and back, for what trainers keep beside tensors: objects become dicts,
// arrays lists.
pickle::Value to_pickle(const nlohmann::json& value);
// Tensors and other objects become null.
nlohmann::json to_json(const pickle::Value& value);

}  // namespace floe::checkpoint
