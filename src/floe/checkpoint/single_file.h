// Checkpoints that are one file of torch.save: everything (layout full), or what OpenFlamingo keeps
// (layout trainable). They are made from a directory that all ranks have written, block by block, so
// host memory does not grow with the model.
#pragma once

#include <string>

#include "floe/checkpoint/save_job.h"

namespace floe::checkpoint {

// Turns the directory into the file `target` and its manifest; the file appears in one step, with its
// manifest already there. Throws CheckpointError or Error.
void make_single_file(const std::string& directory, const SaveJob& job, const std::string& target);

}  // namespace floe::checkpoint
