// A tree of values as YAML text. Reading it is floe/config/yaml.h's.
#pragma once

#include <string>

#include "floe/schema/value.h"

namespace floe::config {

enum class Comments { none, origins };  // origins: each line ends with "# where it came from"

// Block style, lists of scalars on one line; parse_yaml gives the same tree again.
std::string write_yaml(const Value& value, Comments comments = Comments::none);

// All on one line: "{a: 1, b: [2, 3]}".
std::string write_inline_yaml(const Value& value);

}  // namespace floe::config
