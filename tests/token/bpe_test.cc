#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "floe/core/error.h"
#include "tests/token/sample_tokenizers.h"

namespace floe::test::bpe_test {
namespace {

using Texts = std::vector<std::string>;

TEST(Bpe, MergesTheFirstLearnedPair) {
  const auto tokenizer = make(letters());
  EXPECT_EQ(tokens_of(tokenizer, "abcd"), (Texts{"ab", "cd"}));
  EXPECT_EQ(tokens_of(tokenizer, "abc"), (Texts{"abc"}));
  EXPECT_EQ(tokens_of(tokenizer, ""), Texts{});
}

TEST(Bpe, UnknownCharacters) {
  auto document = letters();
  EXPECT_EQ(tokens_of(make(document), "aÄÖb"), (Texts{"a", "<unk>", "<unk>", "b"}));
  document["model"]["fuse_unk"] = true;
  EXPECT_EQ(tokens_of(make(document), "aÄÖb"), (Texts{"a", "<unk>", "b"}));
  document["model"]["unk_token"] = nullptr;
  EXPECT_EQ(tokens_of(make(document), "aÄÖb"), (Texts{"ab"}));  // nothing stands between them
}

TEST(Bpe, ByteFallback) {
  auto document = letters();
  document["model"]["byte_fallback"] = true;
  document["model"]["vocab"]["<0xC3>"] = 100;
  EXPECT_EQ(tokens_of(make(document), "é"), Texts{"<unk>"});  // not all of its bytes are there
  document["model"]["vocab"]["<0xA9>"] = 101;
  EXPECT_EQ(tokens_of(make(document), "é"), (Texts{"<0xC3>", "<0xA9>"}));
}

TEST(Bpe, IgnoreMergesTakesWordsWhole) {
  auto document = letters();
  document["model"]["vocab"]["xyz"] = 100;
  EXPECT_EQ(tokens_of(make(document), "xyz"), (Texts{"x", "y", "z"}));
  document["model"]["ignore_merges"] = true;
  EXPECT_EQ(tokens_of(make(document), "xyz"), (Texts{"xyz"}));
  EXPECT_EQ(tokens_of(make(document), "xyza"), (Texts{"x", "y", "z", "a"}));
}

// Whole texts as one word: cutting at the space mark must not show.
TEST(Bpe, CutsAtSpacesOnlyWhereNothingJoins) {
  auto document = letters();
  EXPECT_EQ(tokens_of(make(document), "ab▁abc▁▁a"), (Texts{"ab", "▁", "abc", "▁", "▁a"}));
  document["model"]["vocab"]["b▁"] = 100;
  auto& merges = document["model"]["merges"];
  merges.insert(merges.begin(), "b ▁");
  EXPECT_EQ(tokens_of(make(document), "ab▁abc"), (Texts{"a", "b▁", "abc"}));
}

// Short words are scanned and long ones go through a queue; both are the plain rule: of all pairs
// of neighbours, the one with the smallest rank, the leftmost first.
std::vector<std::string> by_the_rule(std::vector<std::string> symbols,
                                     const token::Bpe::Merges& merges) {
  for (;;) {
    std::size_t best = merges.size(), place = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
      for (std::size_t rank = 0; rank < best; ++rank)
        if (merges[rank].first == symbols[i] && merges[rank].second == symbols[i + 1]) {
          best = rank;
          place = i;
        }
    if (best == merges.size()) return symbols;
    symbols[place] += symbols[place + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST(Bpe, ShortAndLongWordsFollowTheRule) {
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    token::StringToId vocabulary;
    for (const char* letter : {"a", "b", "c"})
      vocabulary[letter] = static_cast<std::int32_t>(vocabulary.size());
    token::Bpe::Merges merges;
    std::vector<std::string> known{"a", "b", "c"};
    for (int i = 0; i < 30; ++i) {
      const auto& left = known[random() % known.size()];
      const auto& right = known[random() % known.size()];
      if (left.size() + right.size() > 12 || vocabulary.contains(left + right)) continue;
      merges.emplace_back(left, right);
      vocabulary[left + right] = static_cast<std::int32_t>(vocabulary.size());
      known.push_back(left + right);
    }
    const token::Bpe bpe(vocabulary, merges, {}, false, "test");
    token::BpeScratch scratch;
    for (const std::size_t length : {1, 2, 7, 47, 48, 49, 200}) {
      std::vector<std::string> letters;
      std::string word;
      for (std::size_t i = 0; i < length; ++i) {
        letters.emplace_back(1, static_cast<char>('a' + random() % 3));
        word += letters.back();
      }
      std::vector<std::int32_t> ids;
      bpe.encode(word, ids, scratch);
      bpe.encode(word, ids, scratch);  // from the cache, where it is short
      std::vector<std::string> tokens;
      for (const std::int32_t id : ids) tokens.push_back(*bpe.token_of(id));
      auto expected = by_the_rule(letters, merges);
      const auto once = expected;
      expected.insert(expected.end(), once.begin(), once.end());
      ASSERT_EQ(tokens, expected) << word;
    }
  }
}

TEST(Bpe, AMillionCharactersAreOneWord) {
  auto document = letters();
  const auto tokenizer = make(document);
  std::string word;
  for (int i = 0; i < 500'000; ++i) word += "ab";
  EXPECT_EQ(tokenizer.encode(word).size(), 500'000u);
}

TEST(Tokenizer, BytesComeBack) {
  const auto tokenizer = make(bytes());
  const std::string text = "a\xc3\xa9\n\xe6\xb0\xb4 <image>";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  EXPECT_EQ(tokenizer.encode("é"), (std::vector<std::int32_t>{0xc3, 0xa9}));
  EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{0xc3, 'x', 9999}), "\xef\xbf\xbdx");
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const auto tokenizer = make(bytes());
  try {
    tokenizer.encode("ab\xff");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(),
                 "the text to tokenize is not UTF-8: byte 2 of 3 starts no character");
  }
}

TEST(Tokenizer, AppendsToTheCallersVector) {
  const auto tokenizer = make(bytes());
  std::vector<std::int32_t> ids{7};
  tokenizer.encode("ab", ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{7, 'a', 'b'}));
}

TEST(Tokenizer, ManyThreadsGiveTheSameIds) {
  auto document = bytes();
  document["normalizer"] = {{"type", "NFC"}};
  document["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"Regex", "\\w+|\\W"}}},
         {"behavior", "Isolated"},
         {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const auto tokenizer = make(document);
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) texts.push_back("text e\xcc\x81 number " + std::to_string(i % 37));
  std::vector<std::vector<std::int32_t>> expected;
  for (const auto& text : texts) expected.push_back(tokenizer.encode(text));
  std::vector<std::thread> threads;
  std::array<bool, 4> same{};
  for (bool& found : same)
    threads.emplace_back([&] {
      bool all = true;
      for (int round = 0; round < 20; ++round)
        for (std::size_t i = 0; i < texts.size(); ++i)
          all &= tokenizer.encode(texts[i]) == expected[i];
      found = all;
    });
  for (auto& thread : threads) thread.join();
  for (const bool all : same) EXPECT_TRUE(all);
}

}  // namespace
}  // namespace floe::test::bpe_test
