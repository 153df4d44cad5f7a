// The trainer and strategy of a Lightning project, xlm-core's among them, as blocks of floe's
// configuration.
#pragma once

#include <string>
#include <vector>

#include "floe/migrate/page.h"

namespace floe::migrate {

// YAML or JSON files, later ones over earlier ones. Each is a whole configuration with `trainer:`,
// a trainer, or a strategy alone, in Hydra's words (_target_) or those of LightningCLI (class_path,
// init_args). Throws ConfigError for a file that is none of them and for values that mean nothing.
Page from_lightning(const std::vector<std::string>& files);

// The Markdown tables of all keys, for docs/migrating.md.
std::string lightning_reference();

}  // namespace floe::migrate
