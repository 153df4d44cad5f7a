#include "floe/token/json/json_tokenizer.h"

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/core/utf8.h"
#include "floe/io/file/json_text.h"
#include "floe/token/json/json_fields.h"
#include "floe/token/tokenizer_config.h"

namespace floe::token {
namespace {

using nlohmann::json;

const json& part(const json& document, const char* name) {
  static const json nothing;
  const auto place = document.find(name);
  return place == document.end() ? nothing : *place;
}

const json& checked(const json& document, const std::string& path) {
  require<DataError>(document.is_object(), "'", path, "' must hold a JSON object, not ",
                     shown(document));
  JsonFields fields(document, str("'", path, "'"));
  const std::string version = fields.text_if_any("version").value_or("1.0");
  require<ConfigError>(version == "1.0", "'", path, "': floe knows version 1.0 of the format, not ",
                       quoted(version));
  for (const char* name :
       {"normalizer", "pre_tokenizer", "model", "post_processor", "decoder", "added_tokens"})
    fields.any(name);
  // Cutting and padding are for whoever makes batches; transformers sets both anew for every call.
  fields.ignore("truncation");
  fields.ignore("padding");
  fields.finish();
  return document;  // NOLINT(bugprone-return-const-ref-from-parameter): the caller's own
}

std::string where(const std::string& path, const char* name) { return str("'", path, "': ", name); }

// transformers puts its own value in the place of the file's, for every class but Llama's.
std::optional<bool> prefix_space(const TokenizerConfig& config) {
  if (config.class_name == "LlamaTokenizer") return std::nullopt;
  return config.add_prefix_space.value_or(false);
}

}  // namespace

JsonTokenizer::JsonTokenizer(const json& document, const TokenizerConfig& config,
                             const std::string& path)
    : normalizer_(
          read_normalizer(part(checked(document, path), "normalizer"), where(path, "normalizer"))),
      pre_tokenizer_(part(document, "pre_tokenizer"), prefix_space(config),
                     where(path, "pre_tokenizer")),
      model_(
          Bpe::read(part(document, "model"), pre_tokenizer_.gives_bytes(), where(path, "model"))),
      post_processor_(
          read_post_processor(part(document, "post_processor"), where(path, "post_processor"))),
      decoder_(read_decoder(part(document, "decoder"), where(path, "decoder"))),
      clean_up_spaces_(config.clean_up_spaces) {
  std::vector<AddedToken> tokens;
  const json& listed = part(document, "added_tokens");
  require<DataError>(listed.is_null() || listed.is_array(), where(path, "added_tokens"),
                     " must be a list, not ", shown(listed));
  for (const json& token : listed)
    tokens.push_back(read_added_token(token, where(path, "added_tokens")));
  added_.add(tokens, model_, normalizer_.get());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int32_t id = id_of(tokens[i].content);
    if (const auto given = listed[i].find("id"); given != listed[i].end() && *given != id)
      log::warn(where(path, "added_tokens"), ": ", quoted(tokens[i].content), " has the id ", id,
                ", not ", shown(*given));
  }
  add_configured_tokens(document, config);
  if (config.class_name == "LlamaTokenizer" || config.class_name == "GPTNeoXTokenizer")
    set_template(config, path);
}

void JsonTokenizer::add_configured_tokens(const json& document, const TokenizerConfig& config) {
  std::vector<AddedToken> specials = config.special_tokens();
  const json& padding = part(document, "padding");
  if (padding.is_object() && padding.contains("pad_token") && padding["pad_token"].is_string() &&
      !config.roles.contains("pad_token")) {
    pad_ = padding["pad_token"].get<std::string>();
    specials.push_back(special_token(*pad_));
  }
  // Tokens of the configuration by id, or else those the file has, get their flags; then the
  // special tokens that have no place yet follow.
  std::vector<AddedToken> tokens;
  if (config.legacy_added)
    for (const auto& [id, token] : added_.all()) tokens.push_back(token);
  for (const auto& [id, token] : config.added) tokens.push_back(token);
  for (AddedToken& token : tokens) token.special |= contains(specials, token.content);
  for (const AddedToken& token : specials)
    if (!contains(tokens, token.content) && added_.id_of(token.content) < 0)
      tokens.push_back(token);
  added_.add(tokens, model_, normalizer_.get());
  bos_ = config.role("bos_token");
  eos_ = config.role("eos_token");
  unk_ = config.role("unk_token");
  if (config.roles.contains("pad_token")) pad_ = config.role("pad_token");
}

void JsonTokenizer::set_template(const TokenizerConfig& config, const std::string& path) {
  const bool is_llama = config.class_name == "LlamaTokenizer";
  const auto ids = [&](bool wanted, const std::optional<std::string>& token, const char* name) {
    if (!wanted) return std::vector<std::int32_t>{};
    require<ConfigError>(token.has_value(), "the configuration beside '", path, "' asks to add a ",
                         name, " token but names none");
    return std::vector{id_of(*token)};
  };
  post_processor_ = {ids(config.add_bos_token.value_or(is_llama), bos_, "BOS"),
                     ids(config.add_eos_token.value_or(false), eos_, "EOS")};
}

void JsonTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids,
                           bool add_special) const {
  require_utf8(text, "the text to tokenize");
  auto scratch = scratch_.take();
  const auto& [before, after] = post_processor_;
  if (add_special) ids.insert(ids.end(), before.begin(), before.end());
  added_.split(
      text, false,
      [&](std::size_t begin, std::size_t end) {
        encode_text(text.substr(begin, end - begin), begin == 0, ids, *scratch);
      },
      [&](std::int32_t id) { ids.push_back(id); });
  if (add_special) ids.insert(ids.end(), after.begin(), after.end());
}

void JsonTokenizer::encode_text(std::string_view text, bool at_start,
                                std::vector<std::int32_t>& ids, Scratch& scratch) const {
  scratch.draft.begin(text, at_start);
  if (normalizer_) normalizer_->apply(scratch.draft);
  const std::string_view normal = scratch.draft.text();
  added_.split(
      normal, true,
      [&](std::size_t begin, std::size_t end) {
        encode_piece(normal.substr(begin, end - begin), begin == 0 && scratch.draft.at_start(), ids,
                     scratch);
      },
      [&](std::int32_t id) { ids.push_back(id); });
}

void JsonTokenizer::encode_piece(std::string_view text, bool at_start,
                                 std::vector<std::int32_t>& ids, Scratch& scratch) const {
  scratch.pieces.begin(text, at_start);
  pre_tokenizer_.apply(scratch.pieces);
  for (const std::string_view word : scratch.pieces.all()) model_.encode(word, ids, scratch.bpe);
}

std::string JsonTokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  for (const std::int32_t id : ids) {
    const AddedToken* added = added_.find(id);
    const std::string* token = added ? &added->content : model_.token_of(id);
    if (token && !(skip_special && added_.is_special(*token))) tokens.push_back(*token);
  }
  std::string text;
  if (decoder_) {
    decoder_->apply(tokens);
    text = join(tokens, "");
  } else {
    text = join(tokens, " ");
  }
  return clean_up_spaces_ ? clean_up_spaces(std::move(text)) : text;
}

std::int32_t JsonTokenizer::id_of(std::string_view token) const {
  const std::int32_t id = added_.id_of(token);
  return id >= 0 ? id : model_.id_of(token);
}

std::string JsonTokenizer::token_of(std::int32_t id) const {
  if (const AddedToken* added = added_.find(id)) return added->content;
  const std::string* token = model_.token_of(id);
  require<DataError>(token != nullptr, "the tokenizer has no token ", id, "; it has ", size());
  return *token;
}

std::int64_t JsonTokenizer::add_special_tokens(const std::vector<std::string>& tokens) {
  std::vector<AddedToken> added;
  for (const std::string& token : tokens) added.push_back(special_token(token));
  added_.add(added, model_, normalizer_.get());
  return size();
}

std::string JsonTokenizer::describe() const {
  const auto name = [&](std::int32_t id) { return token_of(id); };
  std::string text = str("model: ", model_.describe(), "\n");
  text += describe_tokens();
  constexpr std::size_t kMostShown = 12;
  std::vector<std::string> special;
  for (const auto& [id, token] : added_.all())
    if (added_.is_special(token.content)) special.push_back(str(quoted(token.content), " ", id));
  const std::size_t num_special = special.size();
  if (num_special > kMostShown) special.resize(kMostShown);
  text += str("special tokens: ", num_special, special.empty() ? "" : ": ", join(special),
              num_special > kMostShown ? ", ...\n" : "\n");
  text += str("other added tokens: ", added_.all().size() - num_special, "\n");
  text += str("normaliser: ", normalizer_ ? normalizer_->describe() : "none", "\n");
  text += str("words: ", pre_tokenizer_.describe(), "\n");
  text += str("encoded as: ", post_processor_.describe(name), "\n");
  text +=
      str("decoder: ", decoder_ ? decoder_->describe() : "tokens with spaces between them", "\n");
  return text;
}

}  // namespace floe::token
