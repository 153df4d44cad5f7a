#include "floe/data/python_str.h"

#include <utf8proc.h>

#include <array>
#include <charconv>
#include <cmath>

#include "floe/data/unicode.h"

namespace floe::data {
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
