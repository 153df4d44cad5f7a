// What kind of character a code point is, and Unicode's normal forms.
//
// The answers are those of the `tokenizers` package, not of a Unicode version: it draws on several
// (Oniguruma's, Rust's regex, Rust's standard library, a crate for normal forms), and ids are equal
// only where its answers are. tools/char_classes.py writes the table by asking it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace floe::token {

enum CharFlag : std::uint16_t {
  kSpace = 1 << 5,    // \s
  kWord = 1 << 6,     // \w of Rust's regex
  kNumeric = 1 << 7,  // Rust's char::is_numeric
  // Changes, moves or may join the character before it in that normal form.
  kNFC = 1 << 8,
  kNFD = 1 << 9,
  kNFKC = 1 << 10,
  kNFKD = 1 << 11,
  kLetter = 1 << 12,  // \p{L}
  kNumber = 1 << 13,  // \p{N}
};

class CharClasses {
 public:
  static const CharClasses& table();

  std::uint16_t flags(char32_t c) const {
    return c < kAscii ? ascii_[c] : blocks_[block_of_[c >> kBlockBits]][c & (kBlockSize - 1)];
  }
  std::uint16_t ascii_flags(unsigned char c) const { return ascii_[c]; }  // below 128

  // The ranges of \p{name} for a general category (`Lu`) or a group of them (`L`); empty for other
  // names.
  std::vector<std::pair<char32_t, char32_t>> category(std::string_view name) const;
  // The ranges of characters that have the flag.
  std::vector<std::pair<char32_t, char32_t>> ranges(CharFlag flag) const;

 private:
  static constexpr char32_t kAscii = 128;
  static constexpr int kBlockBits = 7;
  static constexpr std::size_t kBlockSize = 1 << kBlockBits;

  CharClasses();

  std::array<std::uint16_t, kAscii> ascii_;
  std::vector<std::uint16_t> block_of_;  // equal blocks are kept once
  std::vector<std::array<std::uint16_t, kBlockSize>> blocks_;
};

// Appends the lower case of the character: Rust's char::to_lowercase.
void append_lower(std::string& text, char32_t c);

// Unicode's normal forms, with the characters that the `tokenizers` package knows.
enum class NormalForm { nfc, nfd, nfkc, nfkd };

const char* name_of(NormalForm form);
std::optional<NormalForm> normal_form_named(std::string_view name);

// Appends the text in that form to `result` and returns true, or returns false (and leaves `result`
// alone) when the text is in that form already.
bool normalize(std::string_view text, NormalForm form, std::string& result);

}  // namespace floe::token
