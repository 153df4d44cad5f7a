// Models that nobody trained are refused before the library sees them.
#include "floe/token/sentencepiece/sentencepiece.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "tests/token/sample_tokenizers.h"

namespace floe::test::sentencepiece_test {
namespace {

std::string golden_model() {
  return read_text(std::string(std::getenv("FLOE_SOURCE_DIR")) +
                       "/tests/goldens/data/tokenizers/llama/tokenizer.model",
                   1 << 20);
}

// Protobuf by hand.
std::string field(int number, const std::string& content) {
  std::string bytes(1, static_cast<char>(number << 3 | 2));
  for (std::size_t size = content.size();; size >>= 7) {
    bytes.push_back(static_cast<char>(size < 128 ? size : (size & 127) | 128));
    if (size < 128) break;
  }
  return bytes + content;
}
std::string field(int number, unsigned char value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}
std::string piece(const std::string& text, unsigned char type = 1, float score = 0) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &score, 4);
  return field(1, field(1, text) + std::string(1, 2 << 3 | 5) + bytes + field(3, type));
}

void refused(const std::string& model, const std::string& expected) {
  const TemporaryFolder folder;
  try {
    token::load_tokenizer(folder.write("tokenizer.model", model));
    FAIL() << "accepted; expected: " << expected;
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
  }
}

TEST(SentencePiece, ReadsWhatATrainerWrote) {
  const auto info = token::check_sentencepiece(golden_model(), "m");
  EXPECT_EQ(info.pieces.size(), 2500u);
  EXPECT_EQ(info.model, token::SentencePieceInfo::Model::bpe);
  EXPECT_TRUE(info.byte_fallback);
  EXPECT_FALSE(info.has_normalisation);
  EXPECT_EQ(info.pieces[0].type, token::PieceType::unknown);
}

TEST(SentencePiece, RefusesBrokenFiles) {
  refused("", "no pieces");
  refused("not protobuf at all", "broken");
  const std::string model = golden_model();
  refused(model.substr(0, model.size() - 1), "broken");
  refused(piece("<unk>", 2) + piece("a") + piece("a"), "twice");
  refused(piece("<unk>", 2) + piece(""), "empty");
  refused(piece("<unk>", 2) + piece("\xff"), "UTF-8");
  refused(piece("<unk>", 2) + piece("a", 1, NAN), "no number");
  refused(piece("<unk>", 2) + piece("a", 9), "type 9");
  refused(piece("a"), "one piece for unknown");
  refused(piece("<unk>", 2) + piece("<t>", 2), "not 2");
  refused(piece("<unk>", 2) + piece("<0x00>", 6), "bytes");
  refused(piece("<unk>", 2) + field(2, field(3, 7)), "model type is 7");
}

TEST(SentencePiece, RefusesTablesThatLeadOutside) {
  const auto with_table = [](const std::vector<std::uint32_t>& units, const std::string& texts) {
    std::string table(4 + units.size() * 4, '\0');
    const auto size = static_cast<std::uint32_t>(units.size() * 4);
    std::memcpy(table.data(), &size, 4);
    std::memcpy(table.data() + 4, units.data(), size);
    return piece("<unk>", 2) + piece("a") + field(3, field(2, table + texts));
  };
  const std::string texts("x\0", 2);
  refused(with_table({0}, texts), "table");  // no room for a byte
  refused(with_table(std::vector<std::uint32_t>(256, 0xfffffu << 10), texts), "table");  // far away
  std::vector<std::uint32_t> units(256, 0);
  units[0] = 1u << 8;  // has a value, which is itself
  refused(with_table(units, texts), "table");
  refused(with_table(std::vector<std::uint32_t>(256, 0), "x"), "table");  // texts without an end
  refused(piece("<unk>", 2) + field(3, field(2, "abc")), "table");
}

TEST(SentencePiece, OtherClassesAreRefused) {
  const TemporaryFolder folder;
  folder.write("tokenizer.model", golden_model());
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})");
  EXPECT_THROW(token::load_tokenizer(folder.path()), ConfigError);
}

}  // namespace
}  // namespace floe::test::sentencepiece_test
