#include <sentencepiece_processor.h>

#include <map>
#include <set>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/token/json/added_tokens.h"
#include "floe/token/sentencepiece/sentencepiece.h"
#include "floe/token/tokenizer_config.h"
#include "floe/token/unicode/unicode.h"

namespace floe::token {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581
constexpr std::int64_t kMostModelBytes = 256 * kMiB;

void check(const sentencepiece::util::Status& status, std::string_view what) {
  require<DataError>(status.ok(), what, ": ", status.ToString());
}

// Python's str.isspace.
bool is_space(const char* at) {
  const char32_t c = next_char(at);
  return (c >= 0x1c && c <= 0x1f) || (CharClasses::table().flags(c) & kSpace);
}

void strip_left(std::string& text) {
  const char* at = text.data();
  while (at < text.data() + text.size() && is_space(at)) at += utf8_length(*at);
  text.erase(0, static_cast<std::size_t>(at - text.data()));
}

void strip_right(std::string& text) {
  const char* end = text.data() + text.size();
  while (end > text.data() && is_space(previous_char(end))) end = previous_char(end);
  text.resize(static_cast<std::size_t>(end - text.data()));
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& path, const TokenizerConfig& config);

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& ids,
              bool add_special = true) const override;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const override;
  std::int32_t id_of(std::string_view token) const override;
  std::string token_of(std::int32_t id) const override;
  std::int64_t size() const override {
    return static_cast<std::int64_t>(info_.pieces.size()) + num_new_;
  }
  std::int64_t add_special_tokens(const std::vector<std::string>& tokens) override;
  std::string describe() const override;

 private:
  void add(const AddedToken& token, std::optional<std::int64_t> id);
  std::vector<std::string> split(std::string_view text) const;
  // What lies between added tokens.
  void encode_piece(const std::string& piece, std::vector<std::int32_t>& ids) const;
  std::vector<int> encode_plain(std::string_view text) const;
  std::string to_text(std::vector<std::string> tokens) const;
  bool has_piece(std::int32_t id) const {
    return id >= 0 && static_cast<std::size_t>(id) < info_.pieces.size();
  }

  SentencePieceInfo info_;
  sentencepiece::SentencePieceProcessor processor_;
  std::map<std::string, std::int32_t, std::less<>> added_ids_;
  std::map<std::int32_t, AddedToken> added_;
  std::set<std::string, std::less<>> special_;  // tokens with a role, and additional ones
  std::set<std::string, std::less<>> additional_;
  TokenTrie trie_;
  std::int64_t num_new_ = 0;  // added tokens that are no piece
  bool legacy_, add_prefix_space_, add_bos_, add_eos_, clean_up_spaces_;
  std::size_t unk_length_ = 0;  // pieces of the unknown token's text
};

SentencePieceTokenizer::SentencePieceTokenizer(const std::string& path,
                                               const TokenizerConfig& config)
    : legacy_(config.legacy.value_or(true)),
      add_prefix_space_(config.add_prefix_space.value_or(true)),
      add_bos_(config.add_bos_token.value_or(true)),
      add_eos_(config.add_eos_token.value_or(false)),
      clean_up_spaces_(config.clean_up_spaces) {
  std::string bytes = read_text(path, kMostModelBytes);
  info_ = check_sentencepiece(bytes, path);
  // A second normalizer_spec {add_dummy_prefix: false} is merged into the first.
  if (!legacy_) bytes.append("\x1a\x02\x18\x00", 4);
  check(processor_.LoadFromSerializedProto(bytes), str("'", path, "'"));

  bos_ = config.role("bos_token");
  eos_ = config.role("eos_token");
  pad_ = config.role("pad_token");
  unk_ = config.role("unk_token");
  for (const AddedToken& token : config.special_tokens()) special_.insert(token.content);
  for (const AddedToken& token : config.additional) additional_.insert(token.content);
  for (const auto& [id, token] : config.added) add(token, id);
  for (const AddedToken& token : config.special_tokens())
    if (!added_ids_.contains(token.content)) add(token, std::nullopt);
  require<ConfigError>(!add_bos_ || bos_id(), "'", path,
                       "' has no BOS token to put in front of text");
  require<ConfigError>(!add_eos_ || eos_id(), "'", path, "' has no EOS token to put behind text");
  if (unk_) unk_length_ = encode_plain(*unk_).size();
}

void SentencePieceTokenizer::add(const AddedToken& token, std::optional<std::int64_t> id) {
  if (token.content.empty()) return;
  const auto piece = static_cast<std::int32_t>(processor_.PieceToId(token.content));
  const bool is_piece =
      has_piece(piece) && info_.pieces[static_cast<std::size_t>(piece)].text == token.content;
  const auto index = static_cast<std::int32_t>(id ? *id : is_piece ? piece : size());
  if (!is_piece && !added_ids_.contains(token.content)) ++num_new_;
  added_ids_[token.content] = index;
  added_[index] = token;
  trie_.add(token.content, index);
}

std::vector<int> SentencePieceTokenizer::encode_plain(std::string_view text) const {
  std::vector<int> ids;
  check(processor_.Encode({text.data(), text.size()}, &ids), "SentencePiece refused a text");
  return ids;
}

std::vector<std::string> SentencePieceTokenizer::split(std::string_view text) const {
  std::vector<std::string> parts;
  std::size_t done = 0;
  TokenTrie::Match match;
  while (trie_.find(text, done, match)) {
    if (done < match.begin) parts.emplace_back(text.substr(done, match.begin - done));
    parts.emplace_back(text.substr(match.begin, match.end - match.begin));
    done = match.end;
  }
  if (done < text.size()) parts.emplace_back(text.substr(done));

  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto place = added_ids_.find(parts[i]);
    if (place == added_ids_.end()) continue;
    const AddedToken& token = added_.at(place->second);
    std::string* left = i > 0 ? &parts[i - 1] : nullptr;
    std::string* right = i + 1 < parts.size() ? &parts[i + 1] : nullptr;
    // The neighbours as they were before this token stripped them.
    const bool joins_left = left && !left->empty() && left->back() != ' ';
    const bool joins_right = right && !right->empty() && right->front() != ' ';
    if (token.rstrip && right) strip_left(*right);
    if (token.lstrip && left) strip_right(*left);
    if (!token.single_word) continue;
    if (joins_left) {
      *left += parts[i];
      parts[i].clear();
    } else if (joins_right) {
      *right = parts[i] + *right;
      parts[i].clear();
    }
  }
  return parts;
}

void SentencePieceTokenizer::encode_piece(const std::string& piece,
                                          std::vector<std::int32_t>& ids) const {
  const bool begins_with_space = piece.starts_with(kSpaceMark) || piece.starts_with(' ');
  if (legacy_ || !begins_with_space || !unk_) {
    const auto found = encode_plain(piece);
    ids.insert(ids.end(), found.begin(), found.end());
    return;
  }
  // Without a prefix of its own SentencePiece drops leading spaces, so something stands in front.
  const auto found = encode_plain(*unk_ + piece);
  const std::size_t skipped = found.size() >= unk_length_ ? unk_length_ : 0;
  ids.insert(ids.end(), found.begin() + static_cast<std::ptrdiff_t>(skipped), found.end());
}

void SentencePieceTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids,
                                    bool add_special) const {
  require_utf8(text, "the text to tokenize");
  if (add_special && add_bos_) ids.push_back(*bos_id());
  std::string changed;
  if (!legacy_ && !text.empty()) {
    if (add_prefix_space_) changed = kSpaceMark;
    for (std::size_t at = 0; at < text.size();) {
      const bool is_mark = text.substr(at).starts_with(kSpaceMark);
      changed.append(is_mark ? " " : text.substr(at, 1));
      at += is_mark ? kSpaceMark.size() : 1;
    }
    text = changed;
  }
  const std::size_t begin = ids.size();
  for (const std::string& part : split(text)) {
    if (part.empty()) continue;
    if (const auto place = added_ids_.find(part); place != added_ids_.end())
      ids.push_back(place->second);
    else
      encode_piece(part, ids);
  }
  // The prefix in front of a special token is taken back.
  if (!legacy_ && ids.size() > begin + 1 && ids[begin] == id_of(kSpaceMark) &&
      special_.contains(token_of(ids[begin + 1])))
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(begin));
  if (add_special && add_eos_) ids.push_back(*eos_id());
}

// Special tokens stay as they are; what lies between them goes through SentencePiece.
std::string SentencePieceTokenizer::to_text(std::vector<std::string> tokens) const {
  if (tokens.empty()) return {};
  if (tokens[0].starts_with(kSpaceMark) && add_prefix_space_) tokens[0].erase(0, kSpaceMark.size());
  std::string result;
  std::vector<std::string> plain;
  const auto flush = [&] {
    std::string text;
    check(processor_.Decode(plain, &text), "SentencePiece refused to decode");
    plain.clear();
    return text;
  };
  bool after_special = false;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (special_.contains(tokens[i])) {
      if (!after_special && i != 0 && legacy_) result += " ";
      result += flush() + tokens[i];
      after_special = true;
    } else {
      if (after_special && i == 1 && add_prefix_space_ && !tokens[i].starts_with(kSpaceMark))
        result += " ";
      plain.push_back(tokens[i]);
      after_special = false;
    }
  }
  return result + flush();
}

std::string SentencePieceTokenizer::decode(std::span<const std::int32_t> ids,
                                           bool skip_special) const {
  // Added tokens that SentencePiece does not know are set apart by spaces.
  const auto stands_apart = [&](const std::string& token) {
    const auto place = added_ids_.find(token);
    if (place == added_ids_.end()) return false;
    return !special_.contains(token) || (additional_.contains(token) && !has_piece(place->second));
  };
  std::vector<std::string> texts, tokens;
  for (const std::int32_t id : ids) {
    const auto added = added_.find(id);
    if (added == added_.end() && !has_piece(id)) continue;
    const std::string token = token_of(id);
    if (skip_special && special_.contains(token)) continue;
    if (!stands_apart(token)) {
      tokens.push_back(token);
      continue;
    }
    if (!tokens.empty())
      if (std::string text = to_text(std::move(tokens)); !text.empty())
        texts.push_back(std::move(text));
    tokens.clear();
    texts.push_back(token);
  }
  if (!tokens.empty()) texts.push_back(to_text(std::move(tokens)));
  std::string text = join(texts, " ");
  return clean_up_spaces_ ? clean_up_spaces(std::move(text)) : text;
}

std::int32_t SentencePieceTokenizer::id_of(std::string_view token) const {
  if (const auto place = added_ids_.find(token); place != added_ids_.end()) return place->second;
  const int id = processor_.PieceToId({token.data(), token.size()});
  return has_piece(id) && info_.pieces[static_cast<std::size_t>(id)].text == token ? id : -1;
}

std::string SentencePieceTokenizer::token_of(std::int32_t id) const {
  if (const auto place = added_.find(id); place != added_.end()) return place->second.content;
  require<DataError>(has_piece(id), "the tokenizer has no token ", id, "; it has ", size());
  return info_.pieces[static_cast<std::size_t>(id)].text;
}

std::int64_t SentencePieceTokenizer::add_special_tokens(const std::vector<std::string>& tokens) {
  for (const std::string& token : tokens) {
    special_.insert(token);
    additional_.insert(token);
    if (!added_ids_.contains(token)) add(special_token(token), std::nullopt);
  }
  return size();
}

std::string SentencePieceTokenizer::describe() const {
  static const char* const kinds[] = {"", "unigram", "byte-pair", "word", "character"};
  std::string text =
      str("model: SentencePiece, ", kinds[static_cast<int>(info_.model)], ", ", info_.pieces.size(),
          " pieces", info_.byte_fallback ? ", unknown characters as bytes" : "",
          info_.has_normalisation ? ", with a table for normalising" : "", "\n");
  text += describe_tokens();
  std::vector<std::string> added;
  for (const auto& [id, token] : added_) added.push_back(str(quoted(token.content), " ", id));
  text += str("added tokens: ", added.size(), added.empty() ? "" : ": ", join(added), "\n");
  text += str("spaces: ",
              legacy_ ? "one put in front of every part between added tokens (legacy)"
                      : "one put in front of the text",
              "\n");
  text +=
      str("encoded as: ", add_bos_ ? *bos_ + " " : "", "text", add_eos_ ? " " + *eos_ : "", "\n");
  return text;
}

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path,
                                              const TokenizerConfig& config) {
  require<ConfigError>(config.class_name == "LlamaTokenizer", "'", path,
                       "': floe reads SentencePiece models for the class LlamaTokenizer only, not "
                       "for ",
                       config.class_name);
  return std::make_unique<SentencePieceTokenizer>(path, config);
}

}  // namespace floe::token
