#include "floe/token/byte_alphabet.h"

#include <array>

#include "floe/token/utf8.h"

namespace floe::token {

namespace {

constexpr char32_t kHidden =
    256;  // bytes that have no visible character of their own follow from here

constexpr bool is_visible(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr auto kChars = [] {
  std::array<char32_t, 256> chars{};
  char32_t hidden = kHidden;
  for (int byte = 0; byte < 256; ++byte)
    chars[static_cast<std::size_t>(byte)] =
        is_visible(byte) ? static_cast<char32_t>(byte) : hidden++;
  return chars;
}();

constexpr auto kBytes = [] {
  std::array<std::int16_t, 512> bytes{};
  bytes.fill(-1);
  for (std::size_t byte = 0; byte < 256; ++byte)
    bytes[kChars[byte]] = static_cast<std::int16_t>(byte);
  return bytes;
}();

}  // namespace

char32_t byte_to_char(std::uint8_t byte) { return kChars[byte]; }

int char_to_byte(char32_t c) { return c < kBytes.size() ? kBytes[c] : -1; }

void append_bytes_as_chars(std::string& text, std::string_view bytes) {
  for (const char byte : bytes) append_utf8(text, byte_to_char(static_cast<std::uint8_t>(byte)));
}

bool chars_to_bytes(std::string_view token, std::string& bytes) {
  bytes.clear();
  for (const char* at = token.data(); at < token.data() + token.size();) {
    const int byte = char_to_byte(next_char(at));
    if (byte < 0) return false;
    bytes.push_back(static_cast<char>(byte));
  }
  return true;
}

}  // namespace floe::token
