#include "floe/token/bpe/bpe.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/io/file/json_text.h"
#include "floe/token/json/json_fields.h"

namespace floe::token {
namespace {

using nlohmann::json;

// Up to here scanning all pairs for the best one is faster than a queue.
constexpr std::size_t kShortWord = 48;

constexpr std::string_view kSentencePieceSpace = "\xe2\x96\x81";  // U+2581, SentencePiece's space

// A character other than the mark in front of the mark.
bool joins_at_space(std::string_view token) {
  for (std::size_t at = token.find(kSentencePieceSpace, 1); at != std::string_view::npos;
       at = token.find(kSentencePieceSpace, at + 1))
    if (!token.substr(0, at).ends_with(kSentencePieceSpace)) return true;
  return false;
}

std::string byte_token(unsigned char byte) {
  char text[8];
  std::snprintf(text, sizeof text, "<0x%02X>", byte);
  return text;
}

// Bytes that have no visible character of their own follow from here.
constexpr char32_t kHidden = 256;

constexpr bool is_visible(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr auto kChars = [] {
  std::array<char32_t, 256> chars{};
  char32_t hidden = kHidden;
  for (int byte = 0; byte < 256; ++byte)
    chars[static_cast<std::size_t>(byte)] =
        is_visible(byte) ? static_cast<char32_t>(byte) : hidden++;
  return chars;
}();

constexpr auto kBytes = [] {
  std::array<std::int16_t, 512> bytes{};
  bytes.fill(-1);
  for (std::size_t byte = 0; byte < 256; ++byte)
    bytes[kChars[byte]] = static_cast<std::int16_t>(byte);
  return bytes;
}();

StringToId read_vocabulary(const json& vocabulary, const std::string& where) {
  StringToId result;
  result.reserve(vocabulary.size());
  for (const auto& [token, id] : vocabulary.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= INT32_MAX)
      throw DataError(str(where, ": the id of ", quoted(token),
                          " must be a number below 2^31, not ", shown(id)));
    result.emplace(token, id.get<std::int32_t>());
  }
  return result;
}

// Newer files write ["a", "b"], older ones "a b".
Bpe::Merges read_merges(const json& merges, const std::string& where) {
  Bpe::Merges result;
  result.reserve(merges.size());
  for (const json& merge : merges) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      result.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    if (text.starts_with("#version")) continue;
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      throw DataError(str(where, ": a merge must be two tokens, not ", shown(merge)));
    result.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return result;
}

}  // namespace

Bpe Bpe::read(const json& model, bool words_are_bytes, const std::string& where) {
  JsonFields fields(model, where);
  // Files of the first versions do not say which model they hold; of those, only BPE has merges.
  const std::string type =
      fields.text_if_any("type").value_or(model.contains("merges") ? "BPE" : "");
  require<ConfigError>(type == "BPE", where, ": floe does not support the model ", quoted(type),
                       "; it knows BPE");
  const json& dropout = fields.any("dropout");
  require<ConfigError>(dropout.is_null() || dropout == 0.0, where,
                       ": floe does not support dropout in the tokenizer, found ", shown(dropout));
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
    require<ConfigError>(fields.text_if_any(name).value_or("").empty(), where,
                         ": floe does not support \"", name, "\"");
  Options options;
  options.unk_token = fields.text_if_any("unk_token");
  options.fuse_unk = fields.flag("fuse_unk", false);
  options.byte_fallback = fields.flag("byte_fallback", false);
  options.ignore_merges = fields.flag("ignore_merges", false);
  Bpe bpe(read_vocabulary(fields.object("vocab"), where), read_merges(fields.list("merges"), where),
          options, words_are_bytes, where);
  fields.finish();
  return bpe;
}

Bpe::Bpe(StringToId vocabulary, const Merges& merges, Options options, bool words_are_bytes,
         const std::string& where)
    : vocabulary_(std::move(vocabulary)),
      merges_(merges.size()),
      options_(std::move(options)),
      words_are_bytes_(words_are_bytes),
      char_ids_(vocabulary_.size()) {
  for (const auto& [token, id] : vocabulary_) {
    if (!tokens_.emplace(id, &token).second)
      throw DataError(str(where, ": the id ", id, " belongs to ", quoted(*tokens_[id]), " and to ",
                          quoted(token)));
  }
  if (options_.unk_token) {
    unk_id_ = id_of(*options_.unk_token);
    require<DataError>(unk_id_ >= 0, where, ": the unknown token ", quoted(*options_.unk_token),
                       " is not in the vocabulary");
  }
  add_merges(merges, where);
  if (words_are_bytes_) {
    prepare_bytes();
  } else {
    for (const auto& [token, id] : vocabulary_) {
      if (token.empty() || token.size() != static_cast<std::size_t>(utf8_length(token[0])))
        continue;
      const char* at = token.data();
      char_ids_.put(next_char(at), id);
    }
    prepare_spaces(merges);
  }
}

void Bpe::add_merges(const Merges& merges, const std::string& where) {
  std::string both;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    both.assign(left).append(right);
    const std::int32_t left_id = id_of(left), right_id = id_of(right), id = id_of(both);
    if (left_id < 0 || right_id < 0 || id < 0)
      throw DataError(str(where, ": merge ", rank, " needs the token ",
                          quoted(left_id < 0    ? left
                                 : right_id < 0 ? right
                                                : both),
                          ", which is not in the vocabulary"));
    const auto key = std::uint64_t{static_cast<std::uint32_t>(left_id)} << 32 |
                     static_cast<std::uint32_t>(right_id);
    merges_.put(key, {static_cast<std::int32_t>(rank), id});
  }
  num_merges_ = merges.size();
}

// The ids that a character begins as: itself, its bytes, or the mark for unknown ones.
std::vector<std::int32_t> Bpe::first_ids(std::string_view character) const {
  if (const std::int32_t id = id_of(character); id >= 0) return {id};
  if (options_.byte_fallback) {
    std::vector<std::int32_t> ids;
    for (const char byte : character)
      ids.push_back(id_of(byte_token(static_cast<unsigned char>(byte))));
    if (std::find(ids.begin(), ids.end(), -1) == ids.end()) return ids;
  }
  return {kUnknown};
}

void Bpe::prepare_bytes() {
  for (int byte = 0; byte < 256; ++byte) {
    const auto place = static_cast<std::size_t>(byte);
    const std::string character = to_utf8(byte_to_char(static_cast<std::uint8_t>(byte)));
    byte_ids_[place] = first_ids(character);
    byte_id_[place] = id_of(character);
  }
  if (!options_.ignore_merges) return;
  std::string bytes;
  for (const auto& [token, id] : vocabulary_)
    if (chars_to_bytes(token, bytes)) whole_.emplace(bytes, id);
}

// Note [Cutting at spaces]
// LLaMA's tokenizers hand the model a whole document as one word. When no merge joins a character
// with a space mark behind it, nothing ever reaches over that place, so the parts can be encoded
// one by one (and be found in the cache). The mark itself must be a token, so that unknown
// characters in front of it are closed there as well.
void Bpe::prepare_spaces(const Merges& merges) {
  cuts_at_spaces_ = id_of(kSentencePieceSpace) >= 0 &&
                    std::none_of(merges.begin(), merges.end(), [](const auto& merge) {
                      return joins_at_space(merge.first + merge.second);
                    });
}

std::int32_t Bpe::id_of(std::string_view token) const {
  const auto place = vocabulary_.find(token);
  return place == vocabulary_.end() ? -1 : place->second;
}

const std::string* Bpe::token_of(std::int32_t id) const {
  const auto place = tokens_.find(id);
  return place == tokens_.end() ? nullptr : place->second;
}

bool Bpe::find_whole(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (!options_.ignore_merges) return false;
  const StringToId& words = words_are_bytes_ ? whole_ : vocabulary_;
  const auto place = words.find(word);
  if (place == words.end()) return false;
  ids.push_back(place->second);
  return true;
}

void Bpe::encode(std::string_view word, std::vector<std::int32_t>& ids, BpeScratch& scratch) const {
  if (!cuts_at_spaces_) return encode_part(word, ids, scratch);
  if (find_whole(word, ids)) return;
  std::size_t begin = 0;
  for (std::size_t at = word.find(kSentencePieceSpace, 1); at != std::string_view::npos;
       at = word.find(kSentencePieceSpace, at + kSentencePieceSpace.size())) {
    if (word.substr(begin, at - begin).ends_with(kSentencePieceSpace)) continue;
    encode_part(word.substr(begin, at - begin), ids, scratch);
    begin = at;
  }
  encode_part(word.substr(begin), ids, scratch);
}

void Bpe::encode_part(std::string_view part, std::vector<std::int32_t>& ids,
                      BpeScratch& scratch) const {
  if (scratch.cache.find(part, ids)) return;
  const std::size_t begin = ids.size();
  if (cuts_at_spaces_ || !find_whole(part, ids)) {
    scratch.ids.clear();
    start(part, scratch.ids);
    if (scratch.ids.size() <= kShortWord)
      merge_short(scratch.ids, scratch.ranks);
    else
      merge_long(scratch);
    ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
  }
  scratch.cache.keep(part, std::span(ids).subspan(begin));
}

void Bpe::start(std::string_view word, std::vector<std::int32_t>& symbols) const {
  // Unknown characters in a row may become one; they wait here until a known one closes them. Bytes
  // that stand in for a character do not close them: so has the reference.
  int waiting = 0;
  const auto close = [&] {
    symbols.insert(symbols.end(), static_cast<std::size_t>(waiting), unk_id_);
    waiting = 0;
  };
  const auto add = [&](const std::vector<std::int32_t>& first) {
    if (first[0] != kUnknown) {
      symbols.insert(symbols.end(), first.begin(), first.end());
    } else if (unk_id_ >= 0) {
      if (waiting && !options_.fuse_unk) close();
      waiting = 1;
    }
  };
  if (words_are_bytes_) {
    for (const char c : word) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte_id_[byte] < 0) {
        add(byte_ids_[byte]);
        continue;
      }
      if (waiting) close();
      symbols.push_back(byte_id_[byte]);
    }
  } else {
    for (const char* at = word.data(); at < word.data() + word.size();) {
      const char* begin = at;
      if (const std::int32_t* id = char_ids_.find(next_char(at))) {
        if (waiting) close();
        symbols.push_back(*id);
      } else {
        add(first_ids({begin, static_cast<std::size_t>(at - begin)}));
      }
    }
  }
  close();
}

void Bpe::merge_short(std::vector<std::int32_t>& symbols, std::vector<std::int32_t>& ranks) const {
  const std::size_t count = symbols.size();
  if (count < 2) return;
  ranks.resize(count);
  for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = merge_of(symbols[i], symbols[i + 1]).rank;
  std::size_t pairs = count - 1;
  while (pairs > 0) {
    const auto best =
        std::min_element(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(pairs));
    if (*best == kNoRank) break;
    const auto i = static_cast<std::size_t>(best - ranks.begin());
    symbols[i] = merge_of(symbols[i], symbols[i + 1]).id;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(i));
    --pairs;
    if (i > 0) ranks[i - 1] = merge_of(symbols[i - 1], symbols[i]).rank;
    if (i < pairs) ranks[i] = merge_of(symbols[i], symbols[i + 1]).rank;
  }
}

void Bpe::merge_long(BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  const auto& ids = scratch.ids;
  require<DataError>(ids.size() < std::size_t{std::numeric_limits<std::int32_t>::max()},
                     "a word of ", ids.size(), " symbols is too long for the tokenizer");
  const auto count = static_cast<std::int32_t>(ids.size());
  const auto at = [&](std::int32_t i) -> BpeScratch::Symbol& {
    return symbols[static_cast<std::size_t>(i)];
  };
  symbols.resize(ids.size());
  for (std::int32_t i = 0; i < count; ++i)
    at(i) = {ids[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1};

  // The smallest rank first, of equal ones the leftmost. An entry is stale when its pair is not
  // there any more; ranks are unique, so comparing them tells.
  queue.clear();
  const auto entry = [](std::int32_t rank, std::int32_t place) {
    return std::uint64_t{static_cast<std::uint32_t>(rank)} << 32 |
           static_cast<std::uint32_t>(place);
  };
  for (std::int32_t i = 0; i + 1 < count; ++i)
    if (const Merge merge = merge_of(at(i).id, at(i + 1).id); merge.rank != kNoRank)
      queue.push_back(entry(merge.rank, i));
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  const auto push = [&](std::int32_t left, std::int32_t right) {
    const Merge merge = merge_of(at(left).id, at(right).id);
    if (merge.rank == kNoRank) return;
    queue.push_back(entry(merge.rank, left));
    std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };

  constexpr std::int32_t kGone = -1;  // the id of a symbol that was joined to another
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const auto rank = static_cast<std::int32_t>(queue.back() >> 32);
    const auto left = static_cast<std::int32_t>(queue.back() & 0xffffffff);
    queue.pop_back();
    const std::int32_t right = at(left).next;
    if (at(left).id == kGone || right < 0) continue;
    const Merge merge = merge_of(at(left).id, at(right).id);
    if (merge.rank != rank) continue;
    at(left).id = merge.id;
    at(left).next = at(right).next;
    at(right).id = kGone;
    if (at(left).next >= 0) {
      at(at(left).next).previous = left;
      push(left, at(left).next);
    }
    if (at(left).previous >= 0) push(at(left).previous, left);
  }
  scratch.ids.clear();
  for (std::int32_t i = 0; i >= 0 && count > 0; i = at(i).next) scratch.ids.push_back(at(i).id);
}

std::string Bpe::describe() const {
  return str(words_are_bytes_ ? "byte-level" : "character-level", " byte-pair encoding, ", size(),
             " tokens, ", num_merges_, " merges",
             options_.byte_fallback ? ", unknown characters as bytes" : "",
             options_.ignore_merges ? ", words of the vocabulary taken whole" : "");
}

char32_t byte_to_char(std::uint8_t byte) { return kChars[byte]; }

int char_to_byte(char32_t c) { return c < kBytes.size() ? kBytes[c] : -1; }

void append_bytes_as_chars(std::string& text, std::string_view bytes) {
  for (const char byte : bytes) append_utf8(text, byte_to_char(static_cast<std::uint8_t>(byte)));
}

bool chars_to_bytes(std::string_view token, std::string& bytes) {
  bytes.clear();
  for (const char* at = token.data(); at < token.data() + token.size();) {
    const int byte = char_to_byte(next_char(at));
    if (byte < 0) return false;
    bytes.push_back(static_cast<char>(byte));
  }
  return true;
}

}  // namespace floe::token
