// OpenFlamingo's training command as a configuration of floe.
#pragma once

#include <string>
#include <vector>

#include "floe/migrate/page.h"

namespace floe::migrate {

struct OpenFlamingoOptions {
  std::string models = "models";  // the folder into which models of the hub are downloaded
};

// `command`: what was typed, "torchrun ... train.py --lm_path ...", word by word. Throws
// ConfigError where train.py would not have started. Nothing is read but whether a path is there.
Page from_openflamingo(const std::vector<std::string>& command, const OpenFlamingoOptions& options);

}  // namespace floe::migrate
