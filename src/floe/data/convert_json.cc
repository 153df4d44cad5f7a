#include "floe/data/convert_json.h"

#include <array>
#include <charconv>
#include <cmath>

#include "floe/data/unicode.h"

namespace floe::data {
namespace {

void write_unit(unsigned unit, std::string& out) {
  out += "\\u";
  for (const int shift : {12, 8, 4, 0}) out += "0123456789abcdef"[unit >> shift & 15];
}

// The shortest digits that read back as the same number, without an exponent for 1e-4 <= x < 1e16.
void write_real(double value, std::string& out) {
  if (std::isnan(value)) {
    out += "NaN";
    return;
  }
  if (std::isinf(value)) {
    out += value < 0 ? "-Infinity" : "Infinity";
    return;
  }
  std::array<char, 32> text;
  const auto scientific =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::scientific);
  const std::string_view shortest(text.data(),
                                  static_cast<std::size_t>(scientific.ptr - text.data()));
  const std::size_t e = shortest.find('e');
  int exponent = 0;
  // from_chars takes no '+'.
  const char* digits = shortest.data() + e + (shortest[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits, shortest.data() + shortest.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += shortest;  // at least two digits of exponent, in Python as here
    return;
  }
  std::string mantissa(shortest.substr(0, e));
  if (mantissa.starts_with('-')) {
    out += '-';
    mantissa.erase(0, 1);
  }
  std::erase(mantissa, '.');
  if (exponent < 0) {
    out += "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + mantissa;
    return;
  }
  const auto before_point = static_cast<std::size_t>(exponent) + 1;
  if (mantissa.size() <= before_point)
    out += mantissa + std::string(before_point - mantissa.size(), '0') + ".0";
  else
    out += mantissa.substr(0, before_point) + "." + mantissa.substr(before_point);
}

}  // namespace

void write_python_string(std::string_view text, std::string& out) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const auto [point, bytes] = code_point_at(text, at);
    at += bytes;
    switch (point) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (point >= 0x20 && point < 0x7f) {
          out += static_cast<char>(point);
        } else if (point < 0x10000) {
          write_unit(point, out);
        } else {
          write_unit(0xd800 + ((point - 0x10000) >> 10), out);
          write_unit(0xdc00 + ((point - 0x10000) & 0x3ff), out);
        }
    }
  }
  out += '"';
}

void write_python_json(const Json& value, std::string& out) {
  switch (value.kind) {
    case Json::Kind::null: out += "null"; return;
    case Json::Kind::boolean: out += value.truth ? "true" : "false"; return;
    case Json::Kind::integer: out += value.text == "-0" ? "0" : value.text; return;
    case Json::Kind::real: write_real(value.number, out); return;
    case Json::Kind::string: write_python_string(value.text, out); return;
    case Json::Kind::array: {
      std::string_view separator = "[";
      for (const Json& item : value.items) {
        out += separator;
        write_python_json(item, out);
        separator = ", ";
      }
      out += value.items.empty() ? "[]" : "]";
      return;
    }
    case Json::Kind::object: {
      std::string_view separator = "{";
      for (const JsonMember& member : value.members) {
        out += separator;
        write_python_string(member.key, out);
        out += ": ";
        write_python_json(member.value, out);
        separator = ", ";
      }
      out += value.members.empty() ? "{}" : "}";
      return;
    }
  }
}

}  // namespace floe::data
