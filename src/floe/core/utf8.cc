#include "floe/core/utf8.h"

#include <cstddef>
#include <cstdint>

namespace floe {
namespace {

// A byte as the character U+10FF00 + byte.
constexpr std::string_view kEscape = "\xf4\x8f";
constexpr unsigned char kFirst = 0xbc, kLast = 0xbf;  // the third byte: two bits of the escaped one
constexpr std::size_t kEscaped = 4;                   // bytes

bool is_escape(std::string_view text) {
  return text.size() >= kEscaped && text.starts_with(kEscape) &&
         static_cast<unsigned char>(text[2]) >= kFirst &&
         static_cast<unsigned char>(text[2]) <= kLast;
}

// Bytes of the character that begins here; 0: none does.
std::size_t character(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0x80 ? 2 : 1;
  return text.size() >= size && is_utf8(text.substr(0, size)) ? size : 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(at++);
    if (first < 0x80) continue;
    const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if (first < 0xc2 || first > 0xf4 || text.size() - at < static_cast<std::size_t>(more))
      return false;
    std::uint32_t code = first & (0x3f >> more);
    for (int i = 0; i < more; ++i, ++at) {
      if ((byte(at) & 0xc0) != 0x80) return false;
      code = code << 6 | (byte(at) & 0x3f);
    }
    const bool overlong = (more == 2 && code < 0x800) || (more == 3 && code < 0x10000);
    if (overlong || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return false;
  }
  return true;
}

std::string shown_bytes(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string shown;
  while (!bytes.empty()) {
    const std::size_t size = character(bytes);
    if (size > 0) {
      shown += bytes.substr(0, size);
    } else {
      const auto byte = static_cast<unsigned char>(bytes.front());
      shown += "\\x";
      shown += kDigits[byte >> 4];
      shown += kDigits[byte & 15];
    }
    bytes.remove_prefix(size > 0 ? size : 1);
  }
  return shown;
}

std::string bytes_to_text(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const std::size_t size = is_escape(bytes) ? 0 : character(bytes);
    if (size > 0) {
      text += bytes.substr(0, size);
    } else {
      const auto byte = static_cast<unsigned char>(bytes.front());
      text += kEscape;
      text += static_cast<char>(kFirst + (byte >> 6));
      text += static_cast<char>(0x80 | (byte & 0x3f));
    }
    bytes.remove_prefix(size > 0 ? size : 1);
  }
  return text;
}

std::string text_to_bytes(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const bool escaped = is_escape(text);
    if (escaped)
      bytes += static_cast<char>((static_cast<unsigned char>(text[2]) - kFirst) << 6 |
                                 (static_cast<unsigned char>(text[3]) & 0x3f));
    else
      bytes += text.front();
    text.remove_prefix(escaped ? kEscaped : 1);
  }
  return bytes;
}

}  // namespace floe
