#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include "floe/core/error.h"
#include "floe/io/file/input_stream.h"
#include "floe/io/file/json_text.h"
#include "floe/io/tar/tar.h"

namespace floe {
namespace {

using Field = std::span<const std::byte>;
using TarBlock = std::array<std::byte, kTarBlock>;

constexpr std::uint64_t kMostMemberBytes = std::uint64_t{2} << 30;
constexpr std::uint64_t kMostTarHeaderBytes = std::uint64_t{1} << 20;  // long names, pax records
constexpr std::size_t kBufferBytes = 64 * 1024;

std::uint64_t padded(std::uint64_t size) { return (size + kTarBlock - 1) / kTarBlock * kTarBlock; }

struct TarHeader {
  // What kind of member follows; `other` has data that nobody here wants, `bare` has none.
  enum class Kind { file, sparse, long_name, long_link, pax, pax_global, bare, other };
  Kind kind = Kind::other;
  std::string name;
  std::uint64_t size = 0;
};

// Text up to the first zero byte.
std::string tar_text(std::span<const std::byte> bytes) {
  const auto end = std::find(bytes.begin(), bytes.end(), std::byte{0});
  return {reinterpret_cast<const char*>(bytes.data()),
          static_cast<std::size_t>(end - bytes.begin())};
}

bool is_zero(const TarBlock& block) {
  return std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; });
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Octal text between spaces, up to the first zero byte; or, with the first bit set, a binary
// number.
std::optional<std::int64_t> parse_number(Field field) {
  const auto first = std::to_integer<unsigned>(field[0]);
  if (first == 0x80 || first == 0xff) {
    // Eight bytes hold every size that can exist; more must only continue the sign.
    std::uint64_t value = first == 0xff ? ~std::uint64_t{0} : 0;
    for (const std::byte byte : field.subspan(1)) {
      const std::uint64_t high = value >> 55;
      if (high != 0 && high != 0x1ff) return std::nullopt;
      value = value << 8 | std::to_integer<std::uint64_t>(byte);
    }
    return static_cast<std::int64_t>(value);
  }
  const std::string whole = tar_text(field);
  std::string_view text = whole;
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  std::int64_t value = 0;
  if (text.empty()) return value;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value, 8);
  if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The sum of all bytes with the checksum itself as spaces; old programs summed signed bytes.
bool has_right_checksum(const TarBlock& block, std::int64_t stored) {
  std::int64_t as_unsigned = 8 * ' ', as_signed = 8 * ' ';
  for (std::size_t i = 0; i < kTarBlock; ++i) {
    if (i >= 148 && i < 156) continue;
    as_unsigned += std::to_integer<unsigned char>(block[i]);
    as_signed += static_cast<signed char>(std::to_integer<unsigned char>(block[i]));
  }
  return stored == as_unsigned || stored == as_signed;
}

TarHeader::Kind kind_of(char type, const std::string& name) {
  using Kind = TarHeader::Kind;
  switch (type) {
    case '\0': return name.ends_with('/') ? Kind::bare : Kind::file;  // old folders
    case '0':
    case '7': return Kind::file;
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6': return Kind::bare;
    case 'S': return Kind::sparse;
    case 'L': return Kind::long_name;
    case 'K': return Kind::long_link;
    case 'x':
    case 'X': return Kind::pax;
    case 'g': return Kind::pax_global;
    default: return Kind::other;
  }
}

// Nothing when the block is not a header: the checksum is wrong or a number is not one.
std::optional<TarHeader> parse_tar_header(const TarBlock& block) {
  const auto field = [&](std::size_t begin, std::size_t end) {
    return std::span(block).subspan(begin, end - begin);
  };
  const auto checksum = parse_number(field(148, 156));
  if (!checksum || !has_right_checksum(block, *checksum)) return std::nullopt;
  // Mode, owner, group, time and device mean nothing here, but in a header they are numbers.
  for (const auto& [begin, end] :
       {std::pair{100, 108}, {108, 116}, {116, 124}, {136, 148}, {329, 337}, {337, 345}})
    if (!parse_number(field(static_cast<std::size_t>(begin), static_cast<std::size_t>(end))))
      return std::nullopt;
  const auto size = parse_number(field(124, 136));
  if (!size || *size < 0) return std::nullopt;

  TarHeader header;
  header.size = static_cast<std::uint64_t>(*size);
  header.name = tar_text(field(0, 100));
  const char type = std::to_integer<char>(block[156]);
  header.kind = kind_of(type, header.name);
  const bool is_gnu = type == 'S' || type == 'L' || type == 'K';
  if (const std::string prefix = tar_text(field(345, 500)); !prefix.empty() && !is_gnu)
    header.name = prefix + "/" + header.name;
  return header;
}

// The fields of a pax header that matter here.
struct PaxFields {
  std::optional<std::string> path;
  std::optional<std::uint64_t> size;
  bool sparse = false;
};
// Adds the records "LENGTH KEY=VALUE\n" to what is known; false when one has no length.
bool parse_pax(std::span<const std::byte> records, PaxFields& fields) {
  std::string_view rest(reinterpret_cast<const char*>(records.data()), records.size());
  for (;;) {
    const std::size_t num_digits = static_cast<std::size_t>(
        std::find_if_not(rest.begin(), rest.end(), is_digit) - rest.begin());
    const std::size_t equals = rest.find('=');
    if (num_digits == 0 || equals == std::string_view::npos || rest[num_digits] != ' ' ||
        equals < num_digits + 2)
      return true;  // padding behind the last record
    std::size_t length = 0;
    const auto [end, status] = std::from_chars(rest.data(), rest.data() + num_digits, length);
    if (status != std::errc()) length = rest.size();
    if (length == 0) return false;
    length = std::min(length, rest.size());
    const std::string_view key = rest.substr(num_digits + 1, equals - num_digits - 1);
    const std::string_view value =
        length > equals + 1 ? rest.substr(equals + 1, length - 1 - (equals + 1)) : "";
    if (key == "path") {
      std::string_view path = value;
      while (path.ends_with('/')) path.remove_suffix(1);
      fields.path = std::string(path);
    } else if (key == "size") {
      std::uint64_t size = 0;
      const auto parsed = std::from_chars(value.data(), value.data() + value.size(), size);
      const bool whole = parsed.ec == std::errc() && parsed.ptr == value.data() + value.size();
      fields.size = whole ? size : 0;
    } else if (key.starts_with("GNU.sparse.")) {
      fields.sparse = true;
    }
    rest.remove_prefix(length);
  }
}

}  // namespace

// Reads what Python's tarfile reads, in its order, so that a shard holds the same samples here:
// the first block of zeros ends the archive, and so does the end of the file between members.
class TarReader::Impl {
 public:
  Impl(const std::string& where, const std::atomic<bool>* stop)
      : where_(where), stop_(stop), buffer_(kBufferBytes) {}

  bool next(TarEntry& entry) {
    if (done_) return false;
    done_ = true;  // unless this call goes well
    try {
      if (!next_file(entry)) {
        stream_->finish();
        return false;
      }
    } catch (const DataError& error) {
      throw DataError(str("shard '", where_, "', at byte ", offset_, ": ", error.what()));
    }
    done_ = false;
    return true;
  }

  std::uint64_t position() const { return position_; }
  void open() { stream_ = open_input(where_, stop_); }

 private:
  // What headers before a member say about it. The first one wins.
  struct Overrides {
    std::optional<std::string> name;
    std::optional<std::uint64_t> size;
  };

  bool next_file(TarEntry& entry) {
    for (;;) {
      skip(skip_before_next_);
      skip_before_next_ = 0;
      const std::uint64_t begin = offset_;
      TarBlock block;
      const std::size_t got = read(block);
      if (got == 0 && begin > 0) return false;
      require<DataError>(got > 0, "the file is empty");
      require<DataError>(got == kTarBlock, "the archive is cut off in a header");
      if (is_zero(block)) return false;
      if (!read_member(block, entry)) continue;
      position_ = begin;
      return true;
    }
  }

  // A member with all headers that belong to it; false when it is not a regular file.
  bool read_member(TarBlock block, TarEntry& entry) {
    Overrides overrides;
    PaxFields extended = global_;
    bool has_extended = false;
    for (;;) {
      std::optional<TarHeader> header = parse_tar_header(block);
      require<DataError>(header.has_value(), "what should be a header is none");
      switch (header->kind) {
        case TarHeader::Kind::long_name: {
          std::string name = tar_text(read_header_data(header->size));
          if (!overrides.name) overrides.name = std::move(name);
          break;
        }
        case TarHeader::Kind::long_link: read_header_data(header->size); break;
        case TarHeader::Kind::pax: {
          PaxFields fields = global_;
          read_pax(header->size, fields);
          extended = fields;
          has_extended = true;
          if (fields.path && !overrides.name) overrides.name = fields.path;
          if (fields.size && !overrides.size) overrides.size = fields.size;
          break;
        }
        case TarHeader::Kind::pax_global: read_pax(header->size, global_); break;
        default: {
          const PaxFields& fields = has_extended ? extended : global_;
          if (global_.path && !overrides.name) overrides.name = global_.path;
          require<DataError>(!fields.sparse && header->kind != TarHeader::Kind::sparse, "member ",
                             quoted(overrides.name.value_or(header->name)),
                             " is stored as a sparse file, which is not supported: write the "
                             "archive without --sparse");
          return take_member(*header, overrides, entry);
        }
      }
      require<DataError>(read(block) == kTarBlock && !is_zero(block),
                         "the archive ends behind the header of a long name or of extended fields");
    }
  }

  bool take_member(const TarHeader& header, const Overrides& overrides, TarEntry& entry) {
    if (header.kind == TarHeader::Kind::bare) return false;
    const std::uint64_t size = overrides.size.value_or(global_.size.value_or(header.size));
    if (header.kind != TarHeader::Kind::file) {
      skip_before_next_ = padded(std::min(size, std::numeric_limits<std::uint64_t>::max() / 2));
      return false;
    }
    entry.name = overrides.name.value_or(header.name);
    require<DataError>(size <= kMostMemberBytes, "member ", quoted(entry.name), " has ", size,
                       " bytes, more than the ", kMostMemberBytes, " that one may have");
    read_data(size, entry.data);
    require<DataError>(entry.data.size() == size, "the archive is cut off in member ",
                       quoted(entry.name), ": ", entry.data.size(), " of ", size, " bytes");
    skip_before_next_ = padded(size) - size;
    return true;
  }

  std::vector<std::byte> read_header_data(std::uint64_t size) {
    require<DataError>(size <= kMostTarHeaderBytes, "a header has ", size,
                       " bytes of names or fields, more than the ", kMostTarHeaderBytes,
                       " that one may have");
    std::vector<std::byte> data;  // with its padding, in which Python looks too
    read_data(padded(size), data);
    return data;
  }

  void read_pax(std::uint64_t size, PaxFields& fields) {
    require<DataError>(parse_pax(read_header_data(size), fields), "a pax header is damaged");
  }

  // Never takes much more memory than the stream has bytes, whatever the header says.
  void read_data(std::uint64_t size, std::vector<std::byte>& out) {
    constexpr std::uint64_t kStep = 16U << 20;
    out.clear();
    while (out.size() < size) {
      const std::size_t begin = out.size();
      out.resize(begin + static_cast<std::size_t>(std::min<std::uint64_t>(size - begin, kStep)));
      const std::size_t got = read(std::span(out).subspan(begin));
      if (begin + got == out.size()) continue;
      out.resize(begin + got);
      return;
    }
  }

  // Fills `out`, or less at the end of the stream.
  std::size_t read(std::span<std::byte> out) {
    std::size_t done = 0;
    while (done < out.size()) {
      if (begin_ == end_) {
        // Large members go to their place without a detour.
        if (out.size() - done >= kBufferBytes) {
          const std::size_t got = stream_->read(out.subspan(done));
          if (got == 0) break;
          done += got;
          continue;
        }
        begin_ = 0;
        end_ = stream_->read(buffer_);
        if (end_ == 0) break;
      }
      const std::size_t count = std::min(out.size() - done, end_ - begin_);
      std::memcpy(out.data() + done, &buffer_[begin_], count);
      begin_ += count;
      done += count;
    }
    offset_ += done;
    return done;
  }

  void skip(std::uint64_t count) {
    std::array<std::byte, 4096> unused;
    while (count > 0) {
      const std::size_t part =
          static_cast<std::size_t>(std::min<std::uint64_t>(count, unused.size()));
      const std::size_t got = read(std::span(unused).first(part));
      require<DataError>(got == part, "the archive is cut off behind a member");
      count -= part;
    }
  }

  std::string where_;
  const std::atomic<bool>* stop_;
  std::unique_ptr<InputStream> stream_;
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // what of the buffer is still to be given
  std::uint64_t offset_ = 0, position_ = 0, skip_before_next_ = 0;
  PaxFields global_;
  bool done_ = false;
};

TarReader::TarReader(const std::string& where, const std::atomic<bool>* stop)
    : impl_(std::make_unique<Impl>(where, stop)) {
  impl_->open();
}
TarReader::~TarReader() = default;
bool TarReader::next(TarEntry& entry) { return impl_->next(entry); }
std::uint64_t TarReader::position() const { return impl_->position(); }

}  // namespace floe
