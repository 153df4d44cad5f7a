#include <gtest/gtest.h>

#include "floe/core/error.h"
#include "tests/token/sample_tokenizers.h"

namespace floe::test::added_tokens_test {
namespace {

using nlohmann::json;
using Texts = std::vector<std::string>;

token::JsonTokenizer with(const json& added, const json& normalizer = nullptr) {
  auto document = letters();
  document["added_tokens"] = added;
  document["normalizer"] = normalizer;
  return make(document);
}

TEST(AddedTokens, TheLongestLeftmostIsTaken) {
  const auto tokenizer =
      with(json::array({json{{"content", "[x]"}}, {{"content", "[x]y"}}, {{"content", "]y"}}}));
  EXPECT_EQ(tokens_of(tokenizer, "a[x]ya[x]a]y"), (Texts{"a", "[x]y", "a", "[x]", "a", "]y"}));
}

TEST(AddedTokens, Flags) {
  EXPECT_EQ(tokens_of(with(json::array({json{{"content", "[x]"}, {"lstrip", true}}})), "a \n[x] a"),
            (Texts{"a", "[x]", "<unk>", "a"}));
  EXPECT_EQ(tokens_of(with(json::array({json{{"content", "[x]"}, {"rstrip", true}}})), "a [x] \na"),
            (Texts{"a", "<unk>", "[x]", "a"}));
  const auto single = with(json::array({json{{"content", "xy"}, {"single_word", true}}}));
  EXPECT_EQ(tokens_of(single, "xy-axy-xya"),
            (Texts{"xy", "<unk>", "a", "x", "y", "<unk>", "x", "y", "a"}));
}

TEST(AddedTokens, NormalizedOnesAreFoundInNormalisedText) {
  const json lower = {{"type", "Lowercase"}};
  const auto tokenizer =
      with({{{"content", "XY"}, {"normalized", true}}, {{"content", "ZZ"}, {"normalized", false}}},
           lower);
  EXPECT_EQ(tokens_of(tokenizer, "aXyA"), (Texts{"a", "XY", "a"}));
  EXPECT_EQ(tokens_of(tokenizer, "ZZzz"), (Texts{"ZZ", "z", "z"}));
}

TEST(AddedTokens, SpecialOnesCanBeSkipped) {
  auto tokenizer = with(json::array({json{{"content", "[p]"}}}));
  EXPECT_EQ(tokenizer.size(), 33);
  EXPECT_EQ(tokenizer.add_special_tokens({"<image>", "ab"}), 34);
  EXPECT_EQ(tokenizer.add_special_tokens({"<image>"}), 34);
  EXPECT_EQ(tokenizer.id_of("<image>"), 33);
  const auto ids = tokenizer.encode("c<image>[p]ab");
  EXPECT_EQ(tokenizer.decode(ids), "c <image> [p] ab");
  EXPECT_EQ(tokenizer.decode(ids, true), "c [p]");
}

// The ways through white space that is taken twice must end and stay linear.
TEST(AddedTokens, RunsOfStrippingTokens) {
  const auto tokenizer =
      with(json::array({json{{"content", " "}, {"lstrip", true}, {"rstrip", true}}}));
  EXPECT_EQ(tokens_of(tokenizer, "a" + std::string(300'000, ' ') + "b"), (Texts{"a", " ", "b"}));
}

TEST(FlamingoTokens, AreAddedOnce) {
  token::TokenizerConfig config;
  config.roles["eos_token"] = token::special_token("</s>");
  auto tokenizer = make(letters(), config);
  const auto tokens = token::add_flamingo_tokens(tokenizer);
  EXPECT_EQ(tokens.eos, 32);
  EXPECT_EQ(tokens.endofchunk, 33);
  EXPECT_EQ(tokens.image, 34);
  EXPECT_EQ(tokens.pad, 35);
  EXPECT_EQ(tokens.size, 36);
  EXPECT_EQ(token::add_flamingo_tokens(tokenizer).size, 36);
  EXPECT_EQ(tokenizer.pad(), "<PAD>");
}

TEST(FlamingoTokens, NeedAnEnd) {
  auto tokenizer = make(letters());
  EXPECT_THROW(token::add_flamingo_tokens(tokenizer), ConfigError);
}

}  // namespace
}  // namespace floe::test::added_tokens_test
