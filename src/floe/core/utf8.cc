#include "floe/core/utf8.h"

#include <cstdint>
#include <cstring>

#include "floe/core/error.h"
#include "floe/core/hash.h"

namespace floe {
namespace {

// What begins at `at`: the number of bytes, and whether they are one whole character. Bytes of a
// broken one are those that could still have become a character.
struct Sequence {
  std::size_t bytes;
  bool whole;
};

Sequence sequence_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return {1, true};
  std::size_t length = 0;
  unsigned char low = 0x80, high = 0xbf;  // bounds of the second byte
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;   // no longer form than needed
    if (first == 0xed) high = 0x9f;  // no surrogates
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;  // not beyond U+10FFFF
  } else {
    return {1, false};
  }
  for (std::size_t i = 1; i < length; ++i, low = 0x80, high = 0xbf)
    if (at + i == text.size() || byte(at + i) < low || byte(at + i) > high) return {i, false};
  return {length, true};
}

// Bytes of the character that begins the text; 0: none does.
std::size_t character(std::string_view text) {
  const Sequence sequence = sequence_at(text, 0);
  return sequence.whole ? sequence.bytes : 0;
}

// A byte as the character U+10FF00 + byte.
constexpr std::string_view kEscape = "\xf4\x8f";
constexpr unsigned char kFirst = 0xbc, kLast = 0xbf;  // the third byte: two bits of the escaped one
constexpr std::size_t kEscaped = 4;                   // bytes

bool is_escape(std::string_view text) {
  return text.size() >= kEscaped && text.starts_with(kEscape) &&
         static_cast<unsigned char>(text[2]) >= kFirst &&
         static_cast<unsigned char>(text[2]) <= kLast;
}

}  // namespace

bool is_utf8(std::string_view text) { return find_invalid_utf8(text) == std::string_view::npos; }

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    // Eight ASCII bytes at once.
    if (at + 8 <= text.size()) {
      std::uint64_t word;
      std::memcpy(&word, text.data() + at, 8);
      if (!(word & 0x8080808080808080ULL)) {
        at += 8;
        continue;
      }
    }
    const Sequence sequence = sequence_at(text, at);
    if (!sequence.whole) return at;
    at += sequence.bytes;
  }
  return std::string_view::npos;
}

void require_utf8(std::string_view text, std::string_view what) {
  const std::size_t bad = find_invalid_utf8(text);
  require<DataError>(bad == std::string_view::npos, what, " is not UTF-8: byte ", bad, " of ",
                     text.size(), " starts no character");
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const Sequence sequence = sequence_at(bytes, at);
    if (sequence.whole)
      text.append(bytes, at, sequence.bytes);
    else
      text.append("\xef\xbf\xbd");
    at += sequence.bytes;
  }
  return text;
}

std::string shown_bytes(std::string_view bytes) {
  std::string shown;
  while (!bytes.empty()) {
    const std::size_t size = character(bytes);
    if (size > 0) {
      shown += bytes.substr(0, size);
    } else {
      const auto byte = static_cast<unsigned char>(bytes.front());
      shown += "\\x" + hex_digits(byte, 2);
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

void append_utf8(std::string& text, char32_t c) {
  const auto push = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    push(c);
  } else if (c < 0x800) {
    push(0xc0 | c >> 6);
    push(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    push(0xe0 | c >> 12);
    push(0x80 | (c >> 6 & 0x3f));
    push(0x80 | (c & 0x3f));
  } else {
    push(0xf0 | c >> 18);
    push(0x80 | (c >> 12 & 0x3f));
    push(0x80 | (c >> 6 & 0x3f));
    push(0x80 | (c & 0x3f));
  }
}

std::string to_utf8(char32_t c) {
  std::string text;
  append_utf8(text, c);
  return text;
}

}  // namespace floe
