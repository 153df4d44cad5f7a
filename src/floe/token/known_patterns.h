// Matchers written by hand for the expressions that nearly all tokenizers use.
#pragma once

#include <memory>
#include <string>

#include "floe/token/pattern.h"

namespace floe::token {

// The matcher of the expression, or null when it is not one of them.
std::unique_ptr<Pattern> known_pattern(const std::string& expression);

}  // namespace floe::token
