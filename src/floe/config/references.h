// References between values: ${run.dir} is the value at that path, ${env:HOME} an environment
// variable, ${env:NAME:fallback} one with a fallback, $${ a literal "${".
//
// A value that is nothing but one reference takes the other's type (a number stays a number, a list a
// list); inside longer text the other must be a scalar.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "floe/config/value.h"

namespace floe::config {

// A variable's value, or nothing when it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> process_environment(const std::string& name);

// Replaces every reference in the tree. Throws ConfigError with the origin of the value for unknown
// names, cycles, and trees that would grow beyond the bounds of value.h. What a reference brings
// keeps the origin of the place that refers.
void resolve_references(Value& root, const Environment& environment = process_environment);

// Writes "$${" for every "${", so that resolving gives the tree again.
void escape_references(Value& root);

}  // namespace floe::config
