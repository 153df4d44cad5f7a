// Byte-pair encoding: a word begins as its bytes or characters, and the pair of neighbours that was
// learned first is joined, until no pair is known.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace floe::token {

// GPT-2's way to write any byte as a visible character (`Ġ` is a space, `Ċ` a line end): the
// character that stands for the byte.
char32_t byte_to_char(std::uint8_t byte);
// The byte that the character stands for, or -1.
int char_to_byte(char32_t c);

// Every byte written as its character.
void append_bytes_as_chars(std::string& text, std::string_view bytes);
// The bytes of a token; false when a character stands for no byte. The token must be UTF-8.
bool chars_to_bytes(std::string_view token, std::string& bytes);

// A hash table from 64-bit keys for the inner loop of byte-pair encoding: one flat array, no
// removal.
template <class Value>
class FlatTable {
 public:
  // Room for this many keys.
  explicit FlatTable(std::size_t most_keys = 0) {
    const std::size_t slots = std::bit_ceil(most_keys * 2 + 2);
    slots_.assign(slots, {kNoKey, {}});
    shift_ = 64 - std::countr_zero(slots);
  }

  // Replaces the value of a key that is there already.
  void put(std::uint64_t key, Value value) {
    std::size_t at = first_slot(key);
    while (slots_[at].key != kNoKey && slots_[at].key != key) at = next_slot(at);
    slots_[at] = {key, value};
  }
  // Null when there is none.
  const Value* find(std::uint64_t key) const {
    for (std::size_t at = first_slot(key);; at = next_slot(at)) {
      if (slots_[at].key == key) return &slots_[at].value;
      if (slots_[at].key == kNoKey) return nullptr;
    }
  }

 private:
  static constexpr std::uint64_t kNoKey = ~std::uint64_t{0};

  struct Slot {
    std::uint64_t key;
    Value value;
  };

  std::size_t first_slot(std::uint64_t key) const {
    key ^= key >> 29;
    return static_cast<std::size_t>(key * 0x9e3779b97f4a7c15ULL >> shift_);
  }
  std::size_t next_slot(std::size_t at) const { return (at + 1) & (slots_.size() - 1); }

  std::vector<Slot> slots_;
  int shift_ = 63;
};

// The ids of words seen lately. Text repeats a few thousand words, so most are found here.
//
// A fixed number of slots, each as large as a cache line; a new word takes the slot of the old one.
// Long words are not kept. Threads: one at a time.
class WordCache {
 public:
  WordCache() : slots_(kNumSlots) {}

  // Appends the ids of the word and returns true, if it is here.
  bool find(std::string_view word, std::vector<std::int32_t>& ids) const {
    if (word.size() > kMostBytes) return false;
    const Slot& slot = slots_[slot_of(word)];
    if (slot.num_bytes != word.size() || std::memcmp(slot.bytes, word.data(), word.size()) != 0)
      return false;
    ids.insert(ids.end(), slot.ids, slot.ids + slot.num_ids);
    return true;
  }

  void keep(std::string_view word, std::span<const std::int32_t> ids) {
    if (word.empty() || word.size() > kMostBytes || ids.size() > kMostIds) return;
    Slot& slot = slots_[slot_of(word)];
    slot.num_bytes = static_cast<std::uint8_t>(word.size());
    slot.num_ids = static_cast<std::uint8_t>(ids.size());
    std::memcpy(slot.bytes, word.data(), word.size());
    std::copy(ids.begin(), ids.end(), slot.ids);
  }

 private:
  static constexpr std::size_t kNumSlots = 1 << 14, kMostBytes = 30, kMostIds = 8;

  struct alignas(64) Slot {
    std::uint8_t num_bytes = 0, num_ids = 0;
    char bytes[kMostBytes];
    std::int32_t ids[kMostIds];
  };
  static_assert(sizeof(Slot) == 64);

  static std::size_t slot_of(std::string_view word) {
    std::uint64_t hash = word.size() * 0x9e3779b97f4a7c15ULL;
    const char* at = word.data();
    std::size_t rest = word.size();
    for (; rest >= 8; at += 8, rest -= 8) hash = mixed(hash, load(at, 8));
    hash = mixed(hash, load(at, rest));
    return static_cast<std::size_t>(hash >> 40) & (kNumSlots - 1);
  }
  static std::uint64_t load(const char* at, std::size_t bytes) {
    std::uint64_t word = 0;
    if (bytes == 8) {
      std::memcpy(&word, at, 8);
    } else if (bytes >= 4) {
      std::uint32_t low, high;
      std::memcpy(&low, at, 4);
      std::memcpy(&high, at + bytes - 4, 4);
      word = std::uint64_t{high} << 32 | low;
    } else if (bytes > 0) {
      word = static_cast<unsigned char>(at[0]) |
             std::uint64_t{static_cast<unsigned char>(at[bytes / 2])} << 8 |
             std::uint64_t{static_cast<unsigned char>(at[bytes - 1])} << 16;
    }
    return word;
  }
  static std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0xbf58476d1ce4e5b9ULL;
    return hash ^ hash >> 32;
  }

  std::vector<Slot> slots_;
};

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

  // `words_are_bytes`: words arrive as bytes and the vocabulary writes them in GPT-2's byte
  // alphabet; otherwise words are UTF-8 and so is the vocabulary.
  Bpe(StringToId vocabulary, const Merges& merges, Options options, bool words_are_bytes,
      const std::string& where);
  Bpe(Bpe&&) = default;
  // The "model" of tokenizer.json.
  static Bpe read(const nlohmann::json& model, bool words_are_bytes, const std::string& where);

  // Appends the ids of one word. Words that are not bytes must be UTF-8. Thread-safe as long as
  // each thread has its scratch.
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
