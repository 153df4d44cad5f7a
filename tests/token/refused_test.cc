// What floe cannot do, or what is broken, is refused when the tokenizer is loaded, in one sentence
// that names the file and the component.
#include <gtest/gtest.h>

#include "floe/core/error.h"
#include "tests/token/sample_tokenizers.h"

namespace floe::test::refused_test {
namespace {

using nlohmann::json;

template <class ErrorType>
void refused(const json& document, const std::string& expected) {
  try {
    make(document);
    FAIL() << "accepted; expected: " << expected;
  } catch (const ErrorType& error) {
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

json changed(const char* part, const json& value) {
  json document = bytes();
  document[part] = value;
  return document;
}

json with_model(const char* field, const json& value) {
  json document = letters();
  document["model"][field] = value;
  return document;
}

TEST(Refused, ComponentsThatFloeDoesNotKnow) {
  refused<ConfigError>(changed("normalizer", {{"type", "Precompiled"}}),
                       "normalizer \"Precompiled\"");
  refused<ConfigError>(changed("pre_tokenizer", {{"type", "BertPreTokenizer"}}),
                       "\"BertPreTokenizer\"");
  refused<ConfigError>(changed("post_processor", {{"type", "Other"}}), "post-processor \"Other\"");
  refused<ConfigError>(changed("decoder", {{"type", "WordPiece"}}), "decoder \"WordPiece\"");
  refused<ConfigError>(with_model("type", "Unigram"), "model \"Unigram\"");
  refused<ConfigError>(changed("version", "2.0"), "version 1.0");
}

TEST(Refused, OptionsThatFloeDoesNotKnow) {
  refused<ConfigError>(with_model("dropout", 0.1), "dropout");
  refused<ConfigError>(with_model("continuing_subword_prefix", "##"), "continuing_subword_prefix");
  refused<ConfigError>(with_model("end_of_word_suffix", "</w>"), "end_of_word_suffix");
  refused<ConfigError>(with_model("novelty", 1), "novelty");
  refused<ConfigError>(changed("novelty", 1), "novelty");
  refused<ConfigError>(changed("normalizer", {{"type", "NFC"}, {"novelty", 1}}), "novelty");
  refused<ConfigError>(
      changed("pre_tokenizer",
              {{"type", "Sequence"},
               {"pretokenizers",
                {{{"type", "Whitespace"}},
                 {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}}}}}),
      "first");
}

TEST(Refused, BrokenFields) {
  refused<DataError>(json::array(), "object");
  refused<DataError>(changed("normalizer", 5), "object");
  refused<DataError>(changed("normalizer", {{"type", 5}}), "\"type\" must be a text");
  refused<DataError>(changed("normalizer", {{"type", "Prepend"}}), "prepend");
  refused<DataError>(changed("pre_tokenizer", {{"type", "ByteLevel"}}), "add_prefix_space");
  refused<DataError>(changed("pre_tokenizer", {{"type", "Split"},
                                               {"pattern", {{"Word", "a"}}},
                                               {"behavior", "Isolated"},
                                               {"invert", false}}),
                     "pattern");
  refused<DataError>(changed("pre_tokenizer", {{"type", "Split"},
                                               {"pattern", {{"String", "a"}}},
                                               {"behavior", "Away"},
                                               {"invert", false}}),
                     "Away");
  refused<DataError>(changed("added_tokens", 5), "added_tokens");
  refused<DataError>(changed("added_tokens", json::array({json{{"id", 1}}})), "content");
  refused<DataError>(
      changed("decoder", {{"type", "Strip"}, {"content", "ab"}, {"start", 1}, {"stop", 0}}),
      "one character");
}

TEST(Refused, BrokenModels) {
  refused<DataError>(with_model("vocab", {{"a", -1}}), "\"a\"");
  refused<DataError>(with_model("vocab", {{"a", 4294967296}}), "below 2^31");
  refused<DataError>(with_model("vocab", {{"<unk>", 0}, {"a", 0}}), "belongs to");
  refused<DataError>(with_model("merges", json::array({json::array({"a", "z"})})), "merge 0");
  refused<DataError>(with_model("merges", json::array({"a b c"})), "two tokens");
  refused<DataError>(with_model("merges", json::array({5})), "two tokens");
  refused<DataError>(with_model("unk_token", "<none>"), "<none>");
}

TEST(Refused, Templates) {
  const auto with_template = [](const json& single) {
    return changed("post_processor", {{"type", "TemplateProcessing"},
                                      {"single", single},
                                      {"special_tokens", {{"<s>", {{"ids", {1}}}}}}});
  };
  const json text = {{"Sequence", {{"id", "A"}}}}, other = {{"Sequence", {{"id", "B"}}}};
  const json token = {{"SpecialToken", {{"id", "<s>"}}}},
             unknown = {{"SpecialToken", {{"id", "<t>"}}}};
  EXPECT_EQ(make(with_template({token, text, token})).encode("a"),
            (std::vector<std::int32_t>{1, 'a', 1}));
  EXPECT_EQ(make(with_template({token, text})).encode("a", false), std::vector<std::int32_t>{'a'});
  refused<ConfigError>(with_template(json::array({token})), "the text once");
  refused<ConfigError>(with_template({text, text}), "the text once");
  refused<ConfigError>(with_template({text, other}), "the text once");
  refused<DataError>(with_template({unknown, text}), "<t>");
}

TEST(Refused, Folders) {
  const TemporaryFolder folder;
  EXPECT_THROW(token::load_tokenizer(folder.path()), DataError);
  EXPECT_THROW(token::load_tokenizer(folder.path() + "/tokenizer.json"), DataError);
  folder.write("tokenizer.json", "{");
  EXPECT_THROW(token::load_tokenizer(folder.path()), DataError);
  folder.write("tokenizer.json", bytes().dump());
  EXPECT_EQ(token::load_tokenizer(folder.path())->size(), 256);
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "BloomTokenizerFast"})");
  EXPECT_THROW(token::load_tokenizer(folder.path()), ConfigError);
  folder.write("tokenizer_config.json", R"({"split_special_tokens": true})");
  EXPECT_THROW(token::load_tokenizer(folder.path()), ConfigError);
  folder.write("tokenizer_config.json", R"({"eos_token": 5})");
  EXPECT_THROW(token::load_tokenizer(folder.path()), DataError);
  EXPECT_THROW(token::load_tokenizer(folder.write("x.bin", "")), ConfigError);
}

}  // namespace
}  // namespace floe::test::refused_test
