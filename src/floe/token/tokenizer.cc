#include "floe/token/tokenizer.h"

#include <filesystem>
#include <sstream>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/token/json/json_tokenizer.h"
#include "floe/token/sentencepiece/sentencepiece.h"

namespace floe::token {

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<std::int32_t> ids;
  encode(text, ids, add_special);
  return ids;
}

std::optional<std::int32_t> Tokenizer::id_of_role(const std::optional<std::string>& token) const {
  if (!token) return std::nullopt;
  const std::int32_t id = id_of(*token);
  return id < 0 ? std::nullopt : std::optional(id);
}

void Tokenizer::set_pad(const std::string& token) {
  add_special_tokens({token});
  pad_ = token;
}

std::string Tokenizer::describe_tokens() const {
  std::string text = str("size: ", size(), " with the added tokens\n");
  const auto line = [&](const char* role, const std::optional<std::string>& token) {
    const auto id = id_of_role(token);
    text += str(role, ": ", token ? quoted(*token) : "none", id ? str(" ", *id) : "", "\n");
  };
  line("BOS", bos_);
  line("EOS", eos_);
  line("pad", pad_);
  line("unknown", unk_);
  return text;
}

std::string describe(const Tokenizer& tokenizer) { return tokenizer.describe(); }

FlamingoTokens add_flamingo_tokens(Tokenizer& tokenizer) {
  require<ConfigError>(
      tokenizer.eos_id().has_value(),
      "the tokenizer has no EOS token, which training needs at the end of every text; "
      "name one as \"eos_token\" in its tokenizer_config.json");
  tokenizer.add_special_tokens({"<|endofchunk|>", "<image>"});
  if (!tokenizer.pad()) tokenizer.set_pad("<PAD>");
  return {.image = tokenizer.id_of("<image>"),
          .endofchunk = tokenizer.id_of("<|endofchunk|>"),
          .pad = tokenizer.pad_id().value(),
          .eos = tokenizer.eos_id().value(),
          .size = tokenizer.size()};
}

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t kMostBytes = 256 * kMiB;

json read_json(const fs::path& path) {
  return parse_json(read_text(path.string(), kMostBytes), path.string());
}

// merges.txt: a line with the version, then "a b" per line. Like the reference, this takes the
// first line and what stands behind the last line end for no merge.
json read_merges(const fs::path& path) {
  std::istringstream lines(read_text(path.string(), kMostBytes));
  json merges = json::array();
  std::string line;
  for (std::int64_t number = 0; std::getline(lines, line); ++number) {
    if (number == 0 || lines.eof()) continue;
    std::istringstream words(line);
    std::string left, right, more;
    if (!(words >> left >> right) || words >> more)
      throw DataError(str("'", path.string(), "': line ", number + 1, " must be two tokens, not ",
                          quoted(line)));
    merges.push_back({left, right});
  }
  return merges;
}

// The tokenizer.json that transformers makes of vocab.json and merges.txt.
json gpt2_document(const fs::path& vocabulary, const TokenizerConfig& config) {
  json document = {
      {"version", "1.0"},
      {"pre_tokenizer",
       {{"type", "ByteLevel"},
        {"add_prefix_space", config.add_prefix_space.value_or(false)},
        {"trim_offsets", true}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"}, {"merges", read_merges(vocabulary.parent_path() / "merges.txt")}}}};
  document["model"]["vocab"] = read_json(vocabulary);
  return document;
}

std::unique_ptr<Tokenizer> load_gpt2(const fs::path& vocabulary, const std::string& folder) {
  TokenizerConfig config = read_tokenizer_config(folder, VocabularyKind::gpt2);
  require<ConfigError>(
      config.class_name == "GPT2Tokenizer" || config.class_name == "PreTrainedTokenizer", "'",
      folder,
      "' has vocab.json but no tokenizer.json, and floe reads that "
      "for the class GPT2Tokenizer only, not for ",
      config.class_name);
  json document = gpt2_document(vocabulary, config);
  if (config.add_bos_token.value_or(false)) {
    const auto bos = config.role("bos_token");
    const json& vocab = document["model"]["vocab"];
    require<ConfigError>(bos && vocab.is_object() && vocab.contains(*bos), "'", folder,
                         "': \"add_bos_token\" is set, but the vocabulary has no BOS token");
    document["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", *bos}}}}, {{"Sequence", {{"id", "A"}}}}}},
        {"special_tokens", {{*bos, {{"ids", {vocab[*bos]}}}}}}};
  }
  return std::make_unique<JsonTokenizer>(document, config, vocabulary.string());
}

std::unique_ptr<Tokenizer> load_file(const fs::path& path) {
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  if (path.extension() == ".model")
    return load_sentencepiece(path.string(),
                              read_tokenizer_config(folder, VocabularyKind::sentencepiece));
  if (path.filename() == "vocab.json" || path.filename() == "merges.txt")
    return load_gpt2(path.parent_path() / "vocab.json", folder);
  require<ConfigError>(path.extension() == ".json", "'", path.string(),
                       "' is no tokenizer that floe knows; give a folder, tokenizer.json, "
                       "tokenizer.model or vocab.json");
  return std::make_unique<JsonTokenizer>(
      read_json(path), read_tokenizer_config(folder, VocabularyKind::json), path.string());
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  if (!fs::is_directory(path)) return load_file(path);
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"})
    if (const fs::path file = fs::path(path) / name; fs::exists(file)) return load_file(file);
  throw DataError(str("'", path,
                      "' has none of tokenizer.json, tokenizer.model and vocab.json, so it "
                      "is no tokenizer"));
}

}  // namespace floe::token
