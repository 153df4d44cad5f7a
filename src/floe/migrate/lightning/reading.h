// Lightning's files in one form, whatever part of a configuration each of them is.
#pragma once

#include <string>

#include "floe/schema/value.h"

namespace floe::migrate {

// The file as {trainer: {strategy: ...}, callbacks: ..., others}, with YAML's merge keys resolved.
// Throws ConfigError for what is no file of Lightning; floe's own are told apart.
config::Value read_lightning(const std::string& path);

}  // namespace floe::migrate
