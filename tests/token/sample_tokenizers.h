// Small tokenizer.json documents for tests.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "floe/core/utf8.h"
#include "floe/token/bpe/bpe.h"
#include "floe/token/json/json_tokenizer.h"

namespace floe::test {

// A folder that disappears at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "floe-token-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

// Characters a to z, space mark and a few merges: "ab" "abc" "cd".
inline nlohmann::json letters() {
  nlohmann::json vocab = {{"<unk>", 0}, {"▁", 1}};
  for (char c = 'a'; c <= 'z'; ++c) vocab[std::string(1, c)] = vocab.size();
  for (const char* token : {"ab", "cd", "abc", "▁a"}) vocab[token] = vocab.size();
  return {{"version", "1.0"},
          {"added_tokens", nlohmann::json::array()},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocab},
            {"merges", {"a b", "c d", "ab c", "▁ a"}},
            {"unk_token", "<unk>"}}}};
}

// The bytes in GPT-2's alphabet: the id of a byte is the byte.
inline nlohmann::json bytes() {
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocab[to_utf8(token::byte_to_char(static_cast<std::uint8_t>(byte)))] = byte;
  return {{"version", "1.0"},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
}

inline token::JsonTokenizer make(const nlohmann::json& document,
                                 const token::TokenizerConfig& config = {}) {
  // Through text, as from a file: numbers have the types that a reader gives them.
  return token::JsonTokenizer(nlohmann::json::parse(document.dump()), config, "test.json");
}

inline std::vector<std::string> tokens_of(const token::Tokenizer& tokenizer,
                                          const std::string& text) {
  std::vector<std::string> tokens;
  for (const std::int32_t id : tokenizer.encode(text)) tokens.push_back(tokenizer.token_of(id));
  return tokens;
}

}  // namespace floe::test
