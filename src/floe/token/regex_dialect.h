// Oniguruma's regular expressions, as far as PCRE2 can stand in for them.
//
// The two languages differ in what `$`, `\h`, `\w`, `{1,2}+` or `(?i)` mean, and every build of either
// has its own Unicode tables. So an expression is read here, every class of characters is spelled out
// from floe's table, and what could mean something else is refused.
#pragma once

#include <string>

namespace floe::token {

// The expression for PCRE2 in UTF mode. Throws ConfigError, beginning with `where`, for constructs
// outside the common part.
std::string to_pcre2(const std::string& expression, const std::string& where);

}  // namespace floe::token
