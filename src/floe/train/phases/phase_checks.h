// Whether the phases of a configuration can be trained as it says.
#pragma once

#include "floe/train/run_config.h"

namespace floe::train {

// Each is a problem of its own, so that all of them are reported together.
void describe_phase_checks(config::Schema<RunConfig>& s);

}  // namespace floe::train
