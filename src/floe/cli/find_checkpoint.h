// What the user means by CKPT.
#pragma once

#include <string>

namespace floe::cli {

// A checkpoint itself, a file or a directory, is taken as it is. Of a run folder (or its folder
// `checkpoints`) it is the newest: `last`, else step_N or checkpoint_N.pt with the highest N. Throws
// ConfigError when there is nothing of this name, and CheckpointError for a run without checkpoints.
std::string find_checkpoint(const std::string& path);

// The folder of the run that a checkpoint lies in (RUN/checkpoints/step_N); empty when it lies in none.
std::string run_of_checkpoint(const std::string& checkpoint);

// True for a run folder.
bool is_run_folder(const std::string& path);

}  // namespace floe::cli
