// What checkpoint_N.pt says, as OpenFlamingo writes it: epoch, model_state_dict, optimizer_state_dict
// (numbered, as torch's own state_dict() has it) and lr_scheduler_state_dict. With several sets, each with
// a schedule of its own, there is optimizer_state_dicts by set instead of the last two.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "floe/checkpoint/save_job.h"
#include "floe/io/dcp_directory.h"
#include "floe/io/torch_file_writer.h"

namespace floe::checkpoint {

// Copies the tensors from the directory and returns the root of the file.
pickle::Value trainable_state(const DcpDirectory& directory, const SaveJob& job,
                              TorchFileWriter& writer);

// File tensors with a parameter that trains, by group: in the order in which torch's optimizer numbers
// them.
std::vector<std::vector<const FileTensor*>> numbered_tensors(
    const std::vector<FileTensor>& tensors, const std::vector<optim::ParameterGroup>& groups);

// Their names, one group after the other.
std::vector<std::string> numbered_names(const std::vector<FileTensor>& tensors,
                                        const std::vector<optim::ParameterGroup>& groups);

// Parts that a file with everything has as well.
pickle::Value epoch_of(const SaveJob& job);
// {"lr": 1e-3, "betas": (0.9, 0.999), ..., "params": [...]}
pickle::Value group_value(const DcpDirectory& directory, const OptimizerGroups& optimizer,
                          std::size_t group, pickle::Items params);
// {"state": {...}, "param_groups": [...]}
pickle::Value optimizer_value(pickle::Entries state, pickle::Items groups);
// Adds what `value_of` makes of the optimizer under the key `one`, or with several sets {set: value}
// under the key `several`.
void add_optimizers(const SaveJob& job, const std::string& one, const std::string& several,
                    pickle::Entries& root,
                    const std::function<pickle::Value(const OptimizerGroups&)>& value_of);

}  // namespace floe::checkpoint
