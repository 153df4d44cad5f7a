// Is a text UTF-8, and what to do with one that is not?
#pragma once

#include <string>
#include <string_view>

namespace floe {

// Well-formed: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

// For people: bytes that are not UTF-8 as \xff.
std::string shown_bytes(std::string_view bytes);

// For files that must be UTF-8: any bytes as a text, and back. A byte that is not UTF-8 is the character
// U+10FF00 + byte, in Unicode's last private area; characters from there are taken for such bytes.
std::string bytes_to_text(std::string_view bytes);
std::string text_to_bytes(std::string_view text);

}  // namespace floe
