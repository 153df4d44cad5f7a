#include "floe/data/python/base64.h"

#include <gtest/gtest.h>

#include "floe/core/error.h"
#include "floe/data/python/random.h"
#include "floe/data/python/str.h"

namespace floe::data::base64_test {
namespace {

std::string decoded(std::string_view text) { return std::string(as_text(decode_base64(text))); }

std::string encoded(const std::string& bytes) {
  return encode_base64(std::as_bytes(std::span(bytes)));
}

TEST(Base64, Encodes) {
  EXPECT_EQ(encoded(""), "");
  EXPECT_EQ(encoded("A"), "QQ==");
  EXPECT_EQ(encoded("AB"), "QUI=");
  EXPECT_EQ(encoded("ABC"), "QUJD");
  EXPECT_EQ(encoded("\xFB\xFF\xFE"), "+//+");
}

TEST(Base64, AllLengthsWithAndWithoutLineBreaks) {
  PythonRandom random(4);
  for (std::size_t size = 0; size < 400; ++size) {
    std::string bytes;
    for (std::size_t i = 0; i < size; ++i) bytes += static_cast<char>(random.bits(8));
    const std::string text = encoded(bytes);
    EXPECT_EQ(decoded(text), bytes);
    std::string lines;
    for (std::size_t i = 0; i < text.size(); ++i) {
      lines += text[i];
      if (i % 76 == 75) lines += "\r\n";
    }
    EXPECT_EQ(decoded(lines), bytes);
  }
}

TEST(Base64, PaddingAsPythonReadsIt) {
  EXPECT_EQ(decoded(""), "");
  EXPECT_EQ(decoded("===="), "");
  EXPECT_EQ(decoded("QQ=="), "A");
  EXPECT_EQ(decoded("QQ=\n="), "A");
  EXPECT_EQ(decoded("QQ==QQ=="), "A") << "padding ends the data";
  EXPECT_EQ(decoded("QQ=Q="), "A\x04") << "incomplete padding is left out";
  EXPECT_EQ(decoded("QUJD=QUJD"), "ABCABC");
  EXPECT_EQ(decoded("QU-I_="), "AB") << "the URL alphabet is not the alphabet";
  for (const char* wrong : {"Q", "QQ", "QQ=", "QUI", "Q===", "QQ=A", "QUJDR"})
    EXPECT_THROW(decode_base64(wrong), DataError) << wrong;
  EXPECT_THROW(decode_base64("QQ==\xC3\xA9"), DataError) << "not ASCII, even behind the end";
}

TEST(Base64, EveryCharacterInEveryPlaceOfABlock) {
  const std::string good = encoded(std::string(96, 'x'));
  for (int c = 0; c < 128; ++c) {
    for (std::size_t at = 0; at < 40; ++at) {
      // Inserted, a character outside the alphabet changes nothing.
      std::string text = good;
      text.insert(at, 1, static_cast<char>(c));
      if (std::isalnum(c) || c == '+' || c == '/' || c == '=') continue;
      EXPECT_EQ(decoded(text), std::string(96, 'x')) << c << " at " << at;
    }
  }
}

}  // namespace
}  // namespace floe::data::base64_test
