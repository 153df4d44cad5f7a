#include "floe/token/unicode/unicode.h"

#include <gtest/gtest.h>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/token/bpe/bpe.h"

namespace floe::token::unicode_test {
namespace {

TEST(Utf8, EveryCharacterComesBack) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    const std::string text = to_utf8(c);
    ASSERT_EQ(find_invalid_utf8(text), std::string::npos);
    ASSERT_EQ(static_cast<int>(text.size()), utf8_length(text[0]));
    const char* at = text.data();
    ASSERT_EQ(next_char(at), c);
    ASSERT_EQ(at, text.data() + text.size());
    ASSERT_EQ(previous_char(at), text.data());
  }
}

TEST(Utf8, SaysWhereTextIsBroken) {
  using namespace std::string_literals;
  const std::string good = "plain ASCII, and \xc3\xa9";
  EXPECT_EQ(find_invalid_utf8(good), std::string::npos);
  for (const std::string& bad :
       {"\x80"s, "\xc0\xaf"s, "\xc3"s, "\xe2\x82"s, "\xed\xa0\x80"s, "\xf4\x90\x80\x80"s, "\xf8"s,
        "\xe0\x80\xaf"s, "\xf0\x80\x80\xaf"s, "\xff"s})
    EXPECT_EQ(find_invalid_utf8(good + bad + "x"), good.size()) << bad.size();
  EXPECT_THROW(require_utf8("a\xff", "it"), DataError);
}

TEST(Utf8, ReplacesEachBrokenPartOnce) {
  EXPECT_EQ(replace_invalid_utf8("a\xe2\x82z"), "a\xef\xbf\xbdz");          // one cut character
  EXPECT_EQ(replace_invalid_utf8("\xf0\x9f\x98"), "\xef\xbf\xbd");          // at the end
  EXPECT_EQ(replace_invalid_utf8("\xff\xfe"), "\xef\xbf\xbd\xef\xbf\xbd");  // two bytes
  EXPECT_EQ(replace_invalid_utf8("\xe0\x80"), "\xef\xbf\xbd\xef\xbf\xbd");  // an overlong form
}

TEST(ByteAlphabet, CoversAllBytesOnce) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  std::string chars, back;
  append_bytes_as_chars(chars, all);
  ASSERT_TRUE(chars_to_bytes(chars, back));
  EXPECT_EQ(back, all);
  EXPECT_EQ(byte_to_char(' '), U'Ġ');
  EXPECT_EQ(byte_to_char('\n'), U'Ċ');
  EXPECT_EQ(char_to_byte(U'€'), -1);
}

TEST(CharClass, KnowsWhatRegularExpressionsAskFor) {
  const CharClasses& classes = CharClasses::table();
  EXPECT_TRUE(classes.flags('a') & kLetter);
  EXPECT_TRUE(classes.flags(U'水') & kLetter);
  EXPECT_TRUE(classes.flags(U'²') & kNumber);
  EXPECT_TRUE(classes.flags(0x3000) & kSpace);
  EXPECT_FALSE(classes.flags(0x200b) & kSpace);  // zero width space is none
  EXPECT_TRUE(classes.flags('_') & kWord);
  EXPECT_EQ(classes.category("Lt").size(), 10u);
  EXPECT_TRUE(classes.category("Nonsense").empty());
  std::string lower;
  for (const char32_t c : {U'A', U'Ä', U'İ', U'Ǆ', U'ß', U'1'}) append_lower(lower, c);
  EXPECT_EQ(lower, "aäi\xcc\x87ǆß1");
}

TEST(NormalForm, ComposesAndDecomposes) {
  std::string text;
  EXPECT_FALSE(normalize("plain", NormalForm::nfc, text));
  EXPECT_TRUE(text.empty());
  EXPECT_TRUE(normalize("e\xcc\x81 x", NormalForm::nfc, text));
  EXPECT_EQ(text, "é x");
  text.clear();
  EXPECT_TRUE(normalize("aé", NormalForm::nfd, text));
  EXPECT_EQ(text, "ae\xcc\x81");
  text.clear();
  EXPECT_TRUE(normalize("ﬁ①", NormalForm::nfkc, text));
  EXPECT_EQ(text, "fi1");
}

}  // namespace
}  // namespace floe::token::unicode_test
