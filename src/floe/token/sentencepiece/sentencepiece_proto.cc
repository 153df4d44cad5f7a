#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/io/file/json_text.h"
#include "floe/token/sentencepiece/sentencepiece.h"

namespace floe::token {
namespace {

// The fields of one protobuf message.
class Message {
 public:
  Message(std::string_view bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  struct Field {
    std::uint64_t number = 0;
    int wire = 0;
    std::uint64_t value = 0;   // of varints and of fixed sizes
    std::string_view content;  // of texts and messages
  };

  bool next(Field& field) {
    if (at_ == bytes_.size()) return false;
    const std::uint64_t key = varint();
    field = {.number = key >> 3, .wire = static_cast<int>(key & 7)};
    switch (field.wire) {
      case 0: field.value = varint(); break;
      case 1: field.value = fixed(8); break;
      case 2: field.content = take(varint()); break;
      case 5: field.value = fixed(4); break;
      default: refuse();
    }
    if (field.number == 0) refuse();
    return true;
  }

 private:
  [[noreturn]] void refuse() const {
    throw DataError(str("'", path_, "' is no SentencePiece model: the protobuf is broken"));
  }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) refuse();
    const auto part = bytes_.substr(at_, static_cast<std::size_t>(count));
    at_ += static_cast<std::size_t>(count);
    return part;
  }
  std::uint64_t fixed(std::size_t count) {
    std::uint64_t value = 0;
    std::memcpy(&value, take(count).data(), count);
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (!(byte & 0x80)) return value;
    }
    refuse();
  }

  std::string_view bytes_;
  const std::string& path_;
  std::size_t at_ = 0;
};

SentencePieceInfo::Piece read_piece(std::string_view bytes, const std::string& path) {
  SentencePieceInfo::Piece piece;
  Message message(bytes, path);
  Message::Field field;
  while (message.next(field)) {
    if (field.number == 1 && field.wire == 2) {
      piece.text = field.content;
    } else if (field.number == 2 && field.wire == 5) {
      const auto bits = static_cast<std::uint32_t>(field.value);
      std::memcpy(&piece.score, &bits, sizeof bits);
    } else if (field.number == 3 && field.wire == 0) {
      if (field.value < 1 || field.value > 6)
        throw DataError(str("'", path, "': a piece has the type ", field.value, ", not 1 to 6"));
      piece.type = static_cast<PieceType>(field.value);
    } else if (field.number <= 3) {
      throw DataError(str("'", path, "' is no SentencePiece model: the protobuf is broken"));
    }
  }
  return piece;
}

void read_trainer(std::string_view bytes, const std::string& path, SentencePieceInfo& info) {
  constexpr std::uint64_t kModelType = 3, kByteFallback = 35, kTreatSpaceAsSuffix = 24;
  Message message(bytes, path);
  Message::Field field;
  while (message.next(field)) {
    if (field.number == kModelType && field.wire == 0) {
      require<DataError>(field.value >= 1 && field.value <= 4, "'", path, "': the model type is ",
                         field.value, ", not 1 to 4");
      info.model = static_cast<SentencePieceInfo::Model>(field.value);
    } else if (field.number == kByteFallback && field.wire == 0) {
      info.byte_fallback = field.value != 0;
    } else if (field.number == kTreatSpaceAsSuffix && field.wire == 0) {
      require<ConfigError>(field.value == 0, "'", path,
                           "': floe does not support a SentencePiece model that writes spaces as "
                           "suffixes");
    }
  }
}

// The table is a length, a double array of 32-bit units and the texts that values point into. A
// unit leads to (its place ^ its offset ^ a byte); all such places must exist, and all values must
// lie inside the texts, which end with a zero.
bool is_sound_charsmap(std::string_view table) {
  std::uint32_t size = 0;
  if (table.size() < 4) return false;
  std::memcpy(&size, table.data(), 4);
  if (size == 0 || size % 4 != 0 || size >= table.size() - 4) return false;
  const std::string_view texts = table.substr(4 + size);
  if (texts.back() != '\0') return false;
  std::vector<std::uint32_t> units(size / 4);
  std::memcpy(units.data(), table.data() + 4, size);
  for (std::size_t i = 0; i < units.size(); ++i) {
    const std::uint32_t unit = units[i];
    // A value unit leads nowhere: no byte is its label. Only the first unit is walked through
    // whatever it is.
    if (i != 0 && unit >> 31) continue;
    const std::uint32_t offset = (unit >> 10) << ((unit & (1u << 9)) >> 6);
    const std::size_t base = i ^ offset;
    if ((base | 0xff) >= units.size()) return false;
    const bool has_value = (unit >> 8) & 1;
    if (has_value && (units[base] & 0x7fffffff) >= texts.size()) return false;
  }
  return true;
}

void read_normalizer(std::string_view bytes, const std::string& path, SentencePieceInfo& info) {
  constexpr std::uint64_t kCharsMap = 2;
  Message message(bytes, path);
  Message::Field field;
  while (message.next(field)) {
    if (field.number != kCharsMap || field.wire != 2 || field.content.empty()) continue;
    info.has_normalisation = true;
    require<DataError>(is_sound_charsmap(field.content), "'", path,
                       "': the table for normalising text is broken");
  }
}

void check_pieces(const SentencePieceInfo& info, const std::string& path) {
  require<DataError>(!info.pieces.empty(), "'", path, "' has no pieces");
  std::set<std::string_view> seen;
  std::size_t num_unknown = 0, num_bytes = 0;
  for (std::size_t i = 0; i < info.pieces.size(); ++i) {
    const SentencePieceInfo::Piece& piece = info.pieces[i];
    const auto refuse = [&](const char* why) {
      throw DataError(str("'", path, "': piece ", i, ", ", quoted(piece.text), ", ", why));
    };
    if (piece.text.empty()) refuse("is empty");
    if (find_invalid_utf8(piece.text) != std::string::npos) refuse("is not UTF-8");
    if (piece.text.find('\0') != std::string::npos) refuse("contains a zero");
    if (!std::isfinite(piece.score)) refuse("has a score that is no number");
    if (!seen.insert(piece.text).second) refuse("is there twice");
    num_unknown += piece.type == PieceType::unknown;
    num_bytes += piece.type == PieceType::byte;
  }
  require<DataError>(num_unknown == 1, "'", path,
                     "' must have one piece for unknown characters, not ", num_unknown);
  require<DataError>(num_bytes == (info.byte_fallback ? 256u : 0u), "'", path, "' has ", num_bytes,
                     " pieces for bytes",
                     info.byte_fallback ? ", not 256" : " but does not use them");
  if (!info.byte_fallback) return;
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    const bool found = std::any_of(info.pieces.begin(), info.pieces.end(), [&](const auto& piece) {
      return piece.type == PieceType::byte && piece.text == name;
    });
    require<DataError>(found, "'", path, "' has no piece ", name);
  }
}

}  // namespace

SentencePieceInfo check_sentencepiece(std::string_view bytes, const std::string& path) {
  constexpr std::uint64_t kPieces = 1, kTrainer = 2, kNormalizer = 3, kDenormalizer = 5;
  SentencePieceInfo info;
  Message message(bytes, path);
  Message::Field field;
  while (message.next(field)) {
    if (field.wire != 2) {
      require<DataError>(field.number > kDenormalizer, "'", path,
                         "' is no SentencePiece model: the protobuf is broken");
    } else if (field.number == kPieces) {
      info.pieces.push_back(read_piece(field.content, path));
    } else if (field.number == kTrainer) {
      read_trainer(field.content, path, info);
    } else if (field.number == kNormalizer || field.number == kDenormalizer) {
      read_normalizer(field.content, path, info);
    }
  }
  check_pieces(info, path);
  return info;
}

}  // namespace floe::token
