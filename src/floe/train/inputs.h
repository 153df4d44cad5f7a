// The files and folders that a run reads, as its configuration names them; see Note [Relative paths].
#pragma once

#include "floe/config/load.h"
#include "floe/train/run_config.h"

namespace floe::train {

// Makes every input of the configuration absolute that is found, and run.dir, which lies in the working
// directory. `values` have the origins.
void resolve_inputs(RunConfig& config, const config::Value& values);

// Throws ConfigError with the first input that was not found, and the places where it was looked for; and
// for what so many ranks cannot read (one file of prepared batches).
void require_inputs(const config::Loaded<RunConfig>& loaded, int num_ranks);

}  // namespace floe::train
