// The parts of Python's `str` that the rules of samples rest on. Text is UTF-8; where Python's
// strings may hold lone surrogates, they are three bytes each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "floe/data/python/json.h"

namespace floe::data {

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// is_utf8 (core/utf8.h) with surrogates allowed: Python's "surrogatepass".
bool is_utf8_with_surrogates(std::string_view text);

// The code point at `at` of valid text, and the number of its bytes.
struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 1;
};
CodePoint code_point_at(std::string_view text, std::size_t at);

// str.strip(): without Unicode white space (str.isspace) at both ends.
std::string_view strip(std::string_view text);

// str.replace(from, to), over the text once from left to right; at most `most` times.
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    std::size_t most = static_cast<std::size_t>(-1));

// Whether int(bytes) succeeds: digits with single `_` between them, a sign, white space around, at
// most 4300 digits.
bool is_python_int(std::string_view text);

// How Python writes values into text: a sentence of a document may be a number or a list, and then
// its str() becomes part of what is trained on.

// str(value): a string as it is, None, True, 1.5, ['a', None], {'k': 1}.
std::string python_str(const Json& value);

}  // namespace floe::data
