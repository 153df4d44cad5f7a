// Tokens that are found in text before anything else looks at it: `<image>`, `</s>`, runs of
// spaces.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/token/bpe/bpe.h"
#include "floe/token/json/parts.h"

namespace floe::token {

// Finds the longest of a set of tokens at the leftmost place of a text.
class TokenTrie {
 public:
  TokenTrie();
  // Of two equal tokens the first one added counts. The token must not be empty.
  void add(std::string_view token, std::int32_t value);
  bool empty() const { return nodes_.size() == 1; }

  struct Match {
    std::size_t begin, end;
    std::int32_t value;
  };
  // The next match at or behind `from`; false when there is none.
  bool find(std::string_view text, std::size_t from, Match& match) const;

 private:
  struct Node {
    std::int32_t value = -1;
    std::vector<std::pair<unsigned char, std::int32_t>> children;
  };

  std::int32_t child(std::int32_t node, unsigned char byte) const;

  std::vector<Node> nodes_;
  std::array<std::int32_t, 256> first_;  // children of the root, -1: none
  int only_first_ = -1;                  // the byte that every token begins with, -1: several
};

struct AddedToken {
  std::string content;
  bool single_word = false;  // only between characters that are no part of a word
  bool lstrip = false;       // takes the white space in front of it
  bool rstrip = false;       // and behind it
  bool normalized = true;    // looked for in normalised text, in its own normalised form
  bool special = false;      // left out by decode(..., skip_special)

  bool operator==(const AddedToken&) const = default;
};

// An entry of "added_tokens" or "added_tokens_decoder"; `id` is left to the caller.
AddedToken read_added_token(const nlohmann::json& token, const std::string& where);
// As `AddedToken(content, special=True)`.
AddedToken special_token(std::string content);

// Whether one of the tokens has that content.
bool contains(const std::vector<AddedToken>& tokens, std::string_view content);

class AddedTokens {
 public:
  // Those of the vocabulary keep their ids, others follow at its end. `normalizer` may be null.
  void add(const std::vector<AddedToken>& tokens, const Bpe& model, const Normalizer* normalizer);

  // Calls on_text(begin, end) and on_token(id) in the order of the text. `normalized` says which
  // tokens are looked for: those for normalised text or the others.
  template <class OnText, class OnToken>
  void split(std::string_view text, bool normalized, const OnText& on_text,
             const OnToken& on_token) const;

  bool any(bool normalized) const { return !tries_[normalized].empty(); }
  std::int32_t id_of(std::string_view content) const;  // -1: none
  const AddedToken* find(std::int32_t id) const;       // null: none
  bool is_special(const std::string& content) const { return special_names_.contains(content); }
  // How many are not in the model's vocabulary.
  std::int64_t num_new(const Bpe& model) const;
  // By id.
  const std::map<std::int32_t, AddedToken>& all() const { return by_id_; }

 private:
  void build(const Normalizer* normalizer);
  // Grows or rejects a match as the token's flags ask; `done` is where the last one ended.
  bool adjust(std::string_view text, std::size_t done, TokenTrie::Match& match) const;

  std::map<std::string, std::int32_t, std::less<>> ids_;
  std::map<std::int32_t, AddedToken> by_id_;
  std::vector<AddedToken> special_, plain_;  // in the order they came, the first of equals counts
  std::set<std::string> special_names_;
  TokenTrie tries_[2];  // for text as it is, and for normalised text
};

template <class OnText, class OnToken>
void AddedTokens::split(std::string_view text, bool normalized, const OnText& on_text,
                        const OnToken& on_token) const {
  const TokenTrie& trie = tries_[normalized];
  std::size_t done = 0;
  TokenTrie::Match match;
  if (!trie.empty())
    for (std::size_t from = 0; trie.find(text, from, match);) {
      from = match.end;
      if (!adjust(text, done, match)) continue;
      if (done < match.begin) on_text(done, match.begin);
      // Nothing may be left of a token that lies in white space which the one before it took.
      if (match.begin < match.end) on_token(match.value);
      done = match.end;
    }
  if (done < text.size()) on_text(done, text.size());
}

}  // namespace floe::token
