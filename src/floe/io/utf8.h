// Is a text UTF-8?
#pragma once

#include <string_view>

namespace floe {

// Well-formed: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace floe
