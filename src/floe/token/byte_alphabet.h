// GPT-2's way to write any byte as a visible character: `Ġ` is a space, `Ċ` a line end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace floe::token {

// The character that stands for the byte.
char32_t byte_to_char(std::uint8_t byte);
// The byte that the character stands for, or -1.
int char_to_byte(char32_t c);

// Every byte written as its character.
void append_bytes_as_chars(std::string& text, std::string_view bytes);
// The bytes of a token; false when a character stands for no byte. The token must be UTF-8.
bool chars_to_bytes(std::string_view token, std::string& bytes);

}  // namespace floe::token
