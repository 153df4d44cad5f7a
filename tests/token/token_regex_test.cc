#include <gtest/gtest.h>

#include "floe/core/error.h"
#include "floe/token/regex/regex.h"

namespace floe::token::token_regex_test {
namespace {

std::vector<std::string> matches(const std::string& expression, const std::string& text) {
  const auto pattern = make_regex(expression, "test");
  std::vector<std::string> found;
  Pattern::Match match;
  for (std::size_t from = 0; pattern->find(text, from, match); from = match.end)
    found.push_back(text.substr(match.begin, match.end - match.begin));
  return found;
}

using Texts = std::vector<std::string>;

TEST(Pattern, Gpt2) {
  EXPECT_EQ(matches(kGpt2Expression, "I'll  see 12 cats!?\n\n x'S"),
            (Texts{"I", "'ll", " ", " see", " 12", " cats", "!?", "\n\n", " x", "'", "S"}));
  EXPECT_EQ(matches(kGpt2Expression, "a   "), (Texts{"a", "   "}));
}

// The matchers written by hand and PCRE2 read the same language.
TEST(Pattern, KnownOnesAgreeWithPcre2) {
  const std::string tails[] = {
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
      kGpt2Expression};
  std::string text =
      "We'LL 'tis\r\n\n  \xc2\xa0 x1234567é\xcc\x81!?\n\n\t y 'ſ 日本 १२३ \xe2\x80\xa8 end  ";
  for (int i = 0; i < 4; ++i) text += text;
  for (const std::string& expression : tails)
    EXPECT_EQ(matches(expression, text), matches("(?:" + expression + ")", text));
}

TEST(Pattern, CommonLanguage) {
  EXPECT_EQ(matches("[a-c]+|\\d", "abcd1xb"), (Texts{"abc", "1", "b"}));
  EXPECT_EQ(matches("[^\\p{L}\\s]+", "ab 12 é-"), (Texts{"12", "-"}));
  EXPECT_EQ(matches("(?i:ab)c", "ABc abC abc"), (Texts{"ABc", "abc"}));
  EXPECT_EQ(matches("a(?=b)|(?<=a)b", "ab b"), (Texts{"a", "b"}));
  EXPECT_EQ(matches("\\x{e9}|\\u00e8|\\.", "éè."), (Texts{"é", "è", "."}));
  EXPECT_EQ(matches("a++b|x{2,3}", "aaab xxxx"), (Texts{"aaab", "xxx"}));
  EXPECT_EQ(matches(".+", "a\nb"), (Texts{"a", "b"}));
  EXPECT_EQ(matches("[一-龥]+", "x日本y"), (Texts{"日本"}));
}

// What the two engines read differently, or floe does not know, is refused in one sentence.
TEST(Pattern, RefusesTheRest) {
  for (const char* expression :
       {"^a",          "a$",      "\\h",         "\\bx",   "a{2}+",       "a{2}?",  "(?m:a)",
        "(?i)a",       "(?<n>a)", "\\k",         "\\1",    "[[:alpha:]]", "[a&&b]", "\\p{Han}",
        "\\p{Letter}", "a*",      "(?i:ss)",     "(?i:é)", "(?i:[a-z])",  "(",      ")",
        "[a",          "a**",     "*a",          "\\",     "a{,3}",       "{",      "(?=a)+",
        "[b-a]",       "\\xff",   "\\x{110000}", "[]a]",   "a{99999}"})
    EXPECT_THROW(make_regex(expression, "here"), ConfigError) << expression;
  try {
    make_regex("\\h+", "'t.json': pre_tokenizer (Split)");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(
        error.what(),
        "'t.json': pre_tokenizer (Split): floe does not support '\\h' in the regular expression "
        "\"\\\\h+\"");
  }
}

TEST(Pattern, LongTextsStayLinear) {
  const std::string spaces(2'000'000, ' ');
  EXPECT_EQ(matches(kGpt2Expression, spaces).size(), 1u);
  EXPECT_EQ(matches("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", spaces).size(), 1u);
}

}  // namespace
}  // namespace floe::token::token_regex_test
