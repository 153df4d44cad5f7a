// JSON from outside: strict (duplicate keys are an error, depth is bounded), and safe to show.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace floe {

// Throws DataError "'file': ..." for anything that is not one JSON value.
nlohmann::json parse_json(const std::string& text, const std::string& file);

// The name in double quotes, escaped and shortened, for messages.
std::string quoted(const std::string& name);
// A value as it would be written, shortened.
std::string shown(const nlohmann::json& value);

}  // namespace floe
