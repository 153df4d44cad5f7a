#include "floe/data/python/str.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "floe/core/utf8.h"

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

bool is_utf8_with_surrogates(std::string_view text) {
  // A surrogate is ED A0..BF 80..BF. Between them the text must be valid on its own: a sequence
  // that a surrogate cuts in two is not.
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

namespace {

// str.isprintable() of one character.
bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

void append_hex(std::string& out, char kind, char32_t c, int digits) {
  out += '\\';
  out += kind;
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4)
    out += "0123456789abcdef"[c >> shift & 15];
}

void append_quoted(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out += quote;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (c.value == static_cast<char32_t>(quote) || c.value == '\\') {
      out += '\\';
      out += static_cast<char>(c.value);
    } else if (c.value == '\n') {
      out += "\\n";
    } else if (c.value == '\r') {
      out += "\\r";
    } else if (c.value == '\t') {
      out += "\\t";
    } else if (is_printable(c.value)) {
      out += text.substr(at, c.bytes);
    } else if (c.value < 0x100) {
      append_hex(out, 'x', c.value, 2);
    } else if (c.value < 0x10000) {
      append_hex(out, 'u', c.value, 4);
    } else {
      append_hex(out, 'U', c.value, 8);
    }
    at += c.bytes;
  }
  out += quote;
}

// The shortest digits that give the same double, with an exponent from 1e16 on and below 1e-4.
std::string real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific)
                       .ptr;
  const std::string_view shortest(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const std::size_t e = shortest.find('e');
  int exponent = 0;
  std::string_view sign_and_exponent = shortest.substr(e + 1);
  if (sign_and_exponent.starts_with('+')) sign_and_exponent.remove_prefix(1);
  std::from_chars(sign_and_exponent.data(), sign_and_exponent.data() + sign_and_exponent.size(),
                  exponent);
  if (exponent < -4 || exponent >= 16) return std::string(shortest);

  std::string digits;
  for (const char c : shortest.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  std::string out = std::signbit(value) ? "-" : "";
  if (exponent < 0)
    return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  const std::string fraction = digits.substr(whole);
  return out + digits.substr(0, whole) + "." + (fraction.empty() ? "0" : fraction);
}

void append_repr(std::string& out, const Json& value) {
  switch (value.kind) {
    case Json::Kind::null: out += "None"; break;
    case Json::Kind::boolean: out += value.truth ? "True" : "False"; break;
    case Json::Kind::integer: out += value.text == "-0" ? std::string_view("0") : value.text; break;
    case Json::Kind::real: out += real(value.number); break;
    case Json::Kind::string: append_quoted(out, value.text); break;
    case Json::Kind::array: {
      out += '[';
      const char* separator = "";
      for (const Json& item : value.items) {
        out += separator;
        append_repr(out, item);
        separator = ", ";
      }
      out += ']';
      break;
    }
    case Json::Kind::object: {
      out += '{';
      const char* separator = "";
      for (const JsonMember& member : value.members) {
        out += separator;
        append_quoted(out, member.key);
        out += ": ";
        append_repr(out, member.value);
        separator = ", ";
      }
      out += '}';
      break;
    }
  }
}

}  // namespace

std::string python_str(const Json& value) {
  if (value.is(Json::Kind::string)) return std::string(value.text);
  std::string out;
  append_repr(out, value);
  return out;
}

}  // namespace floe::data
