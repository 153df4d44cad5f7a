#include "floe/data/unicode.h"

#include <simdjson.h>

#include <algorithm>

namespace floe::data {
namespace {

constexpr bool is_continuation(unsigned char c) { return (c & 0xC0) == 0x80; }

// What str.isspace() says.
constexpr bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

}  // namespace

bool is_utf8(std::string_view text) { return simdjson::validate_utf8(text.data(), text.size()); }

bool is_utf8_with_surrogates(std::string_view text) {
  // A surrogate is ED A0..BF 80..BF. Between them the text must be valid on its own: a sequence that
  // a surrogate cuts in two is not.
  std::size_t start = 0;
  for (std::size_t at = text.find('\xED'); at != std::string_view::npos;
       at = text.find('\xED', at + 1)) {
    if (at < start || at + 2 >= text.size()) continue;
    const auto second = static_cast<unsigned char>(text[at + 1]);
    const auto third = static_cast<unsigned char>(text[at + 2]);
    if (second < 0xA0 || !is_continuation(second) || !is_continuation(third)) continue;
    if (!is_utf8(text.substr(start, at - start))) return false;
    start = at + 3;
  }
  return is_utf8(text.substr(start));
}

CodePoint code_point_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> char32_t {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) & 0x3F : 0;
  };
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1FU) << 6 | byte(1), 2};
  if (first < 0xF0) return {(first & 0x0FU) << 12 | byte(1) << 6 | byte(2), 3};
  return {(first & 0x07U) << 18 | byte(1) << 12 | byte(2) << 6 | byte(3), 4};
}

std::string_view strip(std::string_view text) {
  while (!text.empty()) {
    const CodePoint first = code_point_at(text, 0);
    if (!is_space(first.value)) break;
    text.remove_prefix(std::min(first.bytes, text.size()));
  }
  while (!text.empty()) {
    std::size_t at = text.size() - 1;
    while (at > 0 && text.size() - at < 4 && is_continuation(static_cast<unsigned char>(text[at])))
      --at;
    if (!is_space(code_point_at(text, at).value)) break;
    text = text.substr(0, at);
  }
  return text;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    std::size_t most) {
  std::string out;
  out.reserve(text.size());
  std::size_t start = 0;
  for (; most > 0; --most) {
    const std::size_t at = text.find(from, start);
    if (at == std::string_view::npos) break;
    out.append(text, start, at - start);
    out += to;
    start = at + from.size();
  }
  return out.append(text, start);
}

bool is_python_int(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  constexpr std::size_t kMostDigits = 4300;
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return false;
  text = text.substr(first, text.find_last_not_of(kSpace) - first + 1);
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  std::size_t digits = 0;
  bool after_digit = false;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && !(c == '_' && after_digit)) return false;
    digits += digit ? 1 : 0;
    after_digit = digit;
  }
  return after_digit && digits <= kMostDigits;
}

}  // namespace floe::data
