// JSON as Python's json.dumps writes it: ASCII only, ", " and ": " between things, numbers as repr.
#pragma once

#include <string>
#include <string_view>

#include "floe/data/python_json.h"

namespace floe::data {

void write_python_string(std::string_view text, std::string& out);
void write_python_json(const Json& value, std::string& out);

}  // namespace floe::data
