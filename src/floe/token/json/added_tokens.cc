#include "floe/token/json/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/io/file/json_text.h"
#include "floe/token/json/json_fields.h"
#include "floe/token/unicode/unicode.h"

namespace floe::token {

TokenTrie::TokenTrie() : nodes_(1) { first_.fill(-1); }

std::int32_t TokenTrie::child(std::int32_t node, unsigned char byte) const {
  if (node == 0) return first_[byte];
  for (const auto& [label, next] : nodes_[static_cast<std::size_t>(node)].children)
    if (label == byte) return next;
  return -1;
}

void TokenTrie::add(std::string_view token, std::int32_t value) {
  std::int32_t node = 0;
  for (const char c : token) {
    const auto byte = static_cast<unsigned char>(c);
    std::int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      nodes_.emplace_back();
      if (node == 0)
        first_[byte] = next;
      else
        nodes_[static_cast<std::size_t>(node)].children.emplace_back(byte, next);
    }
    node = next;
  }
  auto& own = nodes_[static_cast<std::size_t>(node)].value;
  if (own < 0) own = value;

  int count = 0;
  for (int byte = 0; byte < 256; ++byte)
    if (first_[static_cast<std::size_t>(byte)] >= 0) {
      ++count;
      only_first_ = byte;
    }
  if (count != 1) only_first_ = -1;
}

bool TokenTrie::find(std::string_view text, std::size_t from, Match& match) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (only_first_ >= 0) {
      const void* place = std::memchr(text.data() + begin, only_first_, text.size() - begin);
      if (!place) return false;
      begin = static_cast<std::size_t>(static_cast<const char*>(place) - text.data());
    }
    std::int32_t node = first_[static_cast<unsigned char>(text[begin])];
    match.value = -1;
    for (std::size_t at = begin + 1; node >= 0; ++at) {
      if (const std::int32_t value = nodes_[static_cast<std::size_t>(node)].value; value >= 0)
        match = {begin, at, value};
      if (at == text.size()) break;
      node = child(node, static_cast<unsigned char>(text[at]));
    }
    if (match.value >= 0) return true;
  }
  return false;
}

namespace {

bool has(const char* at, CharFlag flag) {
  return (CharClasses::table().flags(next_char(at)) & flag) != 0;
}

}  // namespace

AddedToken read_added_token(const nlohmann::json& token, const std::string& where) {
  JsonFields fields(token, where);
  fields.ignore("id");
  fields.ignore("__type");
  AddedToken result{.content = fields.text("content")};
  result.special = fields.flag("special", false);
  result.single_word = fields.flag("single_word", false);
  result.lstrip = fields.flag("lstrip", false);
  result.rstrip = fields.flag("rstrip", false);
  result.normalized = fields.flag("normalized", !result.special);
  fields.finish();
  return result;
}

AddedToken special_token(std::string content) {
  return {.content = std::move(content), .normalized = false, .special = true};
}

bool contains(const std::vector<AddedToken>& tokens, std::string_view content) {
  return std::any_of(tokens.begin(), tokens.end(),
                     [&](const AddedToken& token) { return token.content == content; });
}

void AddedTokens::add(const std::vector<AddedToken>& tokens, const Bpe& model,
                      const Normalizer* normalizer) {
  for (const AddedToken& token : tokens)
    if (token.special && !token.content.empty() && special_names_.insert(token.content).second)
      special_.push_back(token);

  const auto model_size = static_cast<std::int32_t>(model.size());
  std::int32_t next_id = model_size;
  if (!by_id_.empty()) {
    const std::int32_t last = by_id_.rbegin()->first;
    if (last >= model_size || model_size == 0) next_id = last + 1;
  }
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    std::int32_t id = id_of(token.content);
    if (id >= 0 && by_id_.at(id) == token) continue;
    if (id < 0) id = model.id_of(token.content);
    if (id < 0) id = next_id++;
    ids_[token.content] = id;
    by_id_[id] = token;
    if (!special_names_.contains(token.content)) plain_.push_back(token);
  }
  build(normalizer);
}

void AddedTokens::build(const Normalizer* normalizer) {
  tries_[false] = tries_[true] = TokenTrie();
  Draft draft;
  for (const auto* list : {&special_, &plain_})
    for (const AddedToken& token : *list) {
      draft.begin(token.content, true);
      if (token.normalized && normalizer) normalizer->apply(draft);
      require<ConfigError>(!draft.text().empty(), "nothing is left of the added token ",
                           quoted(token.content), " after the tokenizer's normaliser");
      tries_[token.normalized].add(draft.text(), id_of(token.content));
    }
}

bool AddedTokens::adjust(std::string_view text, std::size_t done, TokenTrie::Match& match) const {
  const AddedToken& token = by_id_.at(match.value);
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  if (token.single_word) {
    if (match.begin > 0 && has(previous_char(begin + match.begin), kWord)) return false;
    if (match.end < text.size() && has(begin + match.end, kWord)) return false;
  }
  if (token.lstrip) {
    const char* at = begin + match.begin;
    while (at > begin + done && has(previous_char(at), kSpace)) at = previous_char(at);
    match.begin = std::max(static_cast<std::size_t>(at - begin), done);
  }
  if (token.rstrip) {
    const char* at = begin + std::max(match.end, done);  // up to `done` it is white space
    while (at < end && has(at, kSpace)) at += utf8_length(*at);
    match.end = static_cast<std::size_t>(at - begin);
  }
  return true;
}

std::int32_t AddedTokens::id_of(std::string_view content) const {
  const auto place = ids_.find(content);
  return place == ids_.end() ? -1 : place->second;
}

const AddedToken* AddedTokens::find(std::int32_t id) const {
  const auto place = by_id_.find(id);
  return place == by_id_.end() ? nullptr : &place->second;
}

std::int64_t AddedTokens::num_new(const Bpe& model) const {
  return std::count_if(ids_.begin(), ids_.end(),
                       [&](const auto& token) { return model.id_of(token.first) < 0; });
}

}  // namespace floe::token
