// Text as Python's `str` methods see it, as far as the metrics need it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace floe::eval {

// str.isspace() of one character.
bool is_python_space(char32_t c);
// str.split(): at runs of white space.
std::vector<std::string> split_words(std::string_view text);
// str.strip()
std::string_view stripped(std::string_view text);
// str.lower(), character by character.
std::string lowered(std::string_view text);
// str.replace(from, to)
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

}  // namespace floe::eval
