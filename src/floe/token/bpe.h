// Byte-pair encoding: a word begins as its bytes or characters, and the pair of neighbours that was
// learned first is joined, until no pair is known.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "floe/token/flat_table.h"
#include "floe/token/word_cache.h"

namespace floe::token {

// Strings looked up by views.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};
using StringToId = std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>>;

// What one thread needs to encode: kept between calls, so that nothing is allocated.
struct BpeScratch {
  struct Symbol {
    std::int32_t id;
    std::int32_t previous, next;  // -1: none
  };

  WordCache cache;
  std::vector<std::int32_t> ids;     // of the symbols at the start
  std::vector<std::int32_t> ranks;   // of the pairs of a short word
  std::vector<Symbol> symbols;       // of a long word
  std::vector<std::uint64_t> queue;  // its pairs: rank, then place
};

class Bpe {
 public:
  struct Options {
    std::optional<std::string> unk_token;
    bool fuse_unk = false, byte_fallback = false, ignore_merges = false;
  };
  using Merges = std::vector<std::pair<std::string, std::string>>;

  // `words_are_bytes`: words arrive as bytes and the vocabulary writes them in GPT-2's byte alphabet;
  // otherwise words are UTF-8 and so is the vocabulary.
  Bpe(StringToId vocabulary, const Merges& merges, Options options, bool words_are_bytes,
      const std::string& where);
  Bpe(Bpe&&) = default;
  // The "model" of tokenizer.json.
  static Bpe read(const nlohmann::json& model, bool words_are_bytes, const std::string& where);

  // Appends the ids of one word. Words that are not bytes must be UTF-8. Thread-safe as long as each
  // thread has its scratch.
  void encode(std::string_view word, std::vector<std::int32_t>& ids, BpeScratch& scratch) const;

  std::int32_t id_of(std::string_view token) const;    // -1: none
  const std::string* token_of(std::int32_t id) const;  // null: none
  std::int64_t size() const { return static_cast<std::int64_t>(vocabulary_.size()); }
  std::string describe() const;

 private:
  static constexpr std::int32_t kNoRank = INT32_MAX;
  static constexpr std::int32_t kUnknown = -1;  // marks a character that is not in the vocabulary

  struct Merge {
    std::int32_t rank = kNoRank, id = -1;
  };

  void add_merges(const Merges& merges, const std::string& where);
  void prepare_bytes();
  void prepare_spaces(const Merges& merges);
  std::vector<std::int32_t> first_ids(std::string_view character) const;

  void encode_part(std::string_view part, std::vector<std::int32_t>& ids,
                   BpeScratch& scratch) const;
  bool find_whole(std::string_view word, std::vector<std::int32_t>& ids) const;
  void start(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void merge_short(std::vector<std::int32_t>& symbols, std::vector<std::int32_t>& ranks) const;
  void merge_long(BpeScratch& scratch) const;
  Merge merge_of(std::int32_t left, std::int32_t right) const {
    const auto key =
        std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
    const Merge* merge = merges_.find(key);
    return merge ? *merge : Merge{};
  }

  StringToId vocabulary_;
  std::unordered_map<std::int32_t, const std::string*> tokens_;
  FlatTable<Merge> merges_;
  std::size_t num_merges_ = 0;
  Options options_;
  std::int32_t unk_id_ = -1;
  bool words_are_bytes_;
  bool cuts_at_spaces_ = false;  // see Note [Cutting at spaces]

  std::array<std::vector<std::int32_t>, 256> byte_ids_;  // what each byte begins as
  std::array<std::int32_t, 256> byte_id_;                // the same where it is one known id, or -1
  FlatTable<std::int32_t> char_ids_;                     // characters of the vocabulary
  StringToId whole_;                                     // words by their bytes, for ignore_merges
};

}  // namespace floe::token
