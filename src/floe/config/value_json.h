// A configuration as JSON, for those who read files rather than YAML.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "floe/config/value.h"

namespace floe::config {

nlohmann::json to_json(const Value& value);

}  // namespace floe::config
