// YAML text to a tree of values; schema/yaml_text.h is the way back.
//
// Scalars follow YAML 1.2's core schema: `1e-4` is a number, `yes` is a string. A key that appears
// twice is an error. Aliases work; what they expand to is bounded, and so is the nesting.
#pragma once

#include <string>

#include "floe/schema/value.h"

namespace floe::config {

// One document. `name` is what origins and errors call the text. An empty text is null.
// Throws ConfigError "name:line:column: ...".
Value parse_yaml(const std::string& text, const std::string& name);
// A value written on one line, as on the command line; every part of it has this origin.
Value parse_inline_yaml(const std::string& text, const Origin& origin);
// The file; throws ConfigError when it cannot be read.
Value read_yaml(const std::string& path);

}  // namespace floe::config
