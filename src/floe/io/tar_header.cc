#include "floe/io/tar_header.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

namespace floe {
namespace {

using Field = std::span<const std::byte>;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Octal text between spaces, up to the first zero byte; or, with the first bit set, a binary number.
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

}  // namespace

std::string tar_text(std::span<const std::byte> bytes) {
  const auto end = std::find(bytes.begin(), bytes.end(), std::byte{0});
  return {reinterpret_cast<const char*>(bytes.data()),
          static_cast<std::size_t>(end - bytes.begin())};
}

bool is_zero(const TarBlock& block) {
  return std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; });
}

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

}  // namespace floe
