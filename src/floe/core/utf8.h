// UTF-8: whether a text is, what to do with one that is not, and its characters one at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace floe {

// Well-formed as Unicode's table 3-7 has it: no overlong forms, no surrogates, nothing above
// U+10FFFF.
bool is_utf8(std::string_view text);
// Where the first byte lies that is not UTF-8, or npos.
std::size_t find_invalid_utf8(std::string_view text);
// Throws DataError that says where, unless the text is UTF-8.
void require_utf8(std::string_view text, std::string_view what);

// Every maximal part that is not UTF-8 becomes U+FFFD, as Python's and Rust's replacing decoders
// do.
std::string replace_invalid_utf8(std::string_view bytes);

// For people: bytes that are not UTF-8 as \xff.
std::string shown_bytes(std::string_view bytes);

// For files that must be UTF-8: any bytes as a text, and back. A byte that is not UTF-8 is the
// character U+10FF00 + byte, in Unicode's last private area; characters from there are taken for
// such bytes.
std::string bytes_to_text(std::string_view bytes);
std::string text_to_bytes(std::string_view text);

// Characters of a text that is UTF-8, by hand: the inner loops of tokenizers look at one at a time.

// The number of bytes of the character that starts with `first`.
inline int utf8_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// The character at `at`, which moves behind it.
inline char32_t next_char(const char*& at) {
  const auto byte = [&](int i) { return static_cast<char32_t>(static_cast<unsigned char>(at[i])); };
  char32_t c = byte(0);
  if (c < 0x80) {
    at += 1;
  } else if (c < 0xe0) {
    c = (c & 0x1f) << 6 | (byte(1) & 0x3f);
    at += 2;
  } else if (c < 0xf0) {
    c = (c & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    at += 3;
  } else {
    c = (c & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
    at += 4;
  }
  return c;
}

// The start of the character that ends before `at`.
inline const char* previous_char(const char* at) {
  do --at;
  while ((static_cast<unsigned char>(*at) & 0xc0) == 0x80);
  return at;
}

void append_utf8(std::string& text, char32_t c);
std::string to_utf8(char32_t c);

}  // namespace floe
