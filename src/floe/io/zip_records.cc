#include "floe/io/zip_records.h"

#include <utility>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/io/json_text.h"
#include "floe/io/zip_format.h"

namespace floe::zip {
namespace {

constexpr std::uint16_t kVersion = 20, kVersion64 = 45;
constexpr std::uint32_t kDate = 0x00210000;  // 1980-01-01: equal content makes equal files
constexpr std::int64_t kExtraHead = 4;       // id and length of an extra field
constexpr std::uint16_t kPaddingField = 0x4246;

bool is_wide(std::int64_t value) { return value >= kIn64; }

std::uint32_t narrow(std::int64_t value) {
  return is_wide(value) ? kIn64 : static_cast<std::uint32_t>(value);
}

// The 64-bit values that do not fit into the header itself.
std::string extra64(std::initializer_list<std::int64_t> values) {
  Record field;
  for (const std::int64_t value : values)
    if (is_wide(value)) field.u64(static_cast<std::uint64_t>(value));
  if (field.bytes().empty()) return "";
  return Record().u16(kExtra64).u16(field.bytes().size()).text(field.bytes()).bytes();
}

std::string central_header(const Placed& entry) {
  const std::string wide = extra64({entry.size, entry.size, entry.header_offset});
  const std::uint16_t version = wide.empty() ? kVersion : kVersion64;
  return Record()
      .u32(kCentralHeader)
      .u16(version)
      .u16(version)
      .u16(kUtf8)
      .u16(kStored)
      .u32(kDate)
      .u32(entry.crc)
      .u32(narrow(entry.size))
      .u32(narrow(entry.size))
      .u16(entry.name.size())
      .u16(wide.size())
      .u16(0)  // comment
      .u16(0)  // disk
      .u16(0)  // internal attributes
      .u32(0)  // external attributes
      .u32(narrow(entry.header_offset))
      .text(entry.name)
      .text(wide)
      .bytes();
}

}  // namespace

Placed place(std::string name, std::int64_t size, std::int64_t offset, std::int64_t alignment) {
  Placed entry{std::move(name), size, offset};
  const std::int64_t least = offset + kLocalHeaderBytes +
                             static_cast<std::int64_t>(entry.name.size()) +
                             static_cast<std::int64_t>(extra64({size, size}).size()) + kExtraHead;
  entry.data_offset = round_up(least, alignment);
  std::int64_t end = 0;
  require(!__builtin_add_overflow(entry.data_offset, size, &end), "the zip entry ",
          quoted(entry.name), " would end beyond 2^63 bytes");
  return entry;
}

std::string local_header(const Placed& entry) {
  const std::string wide = extra64({entry.size, entry.size});
  const std::int64_t extra_bytes = entry.data_offset - entry.header_offset - kLocalHeaderBytes -
                                   static_cast<std::int64_t>(entry.name.size());
  const auto padding = static_cast<std::size_t>(extra_bytes - kExtraHead) - wide.size();
  return Record()
      .u32(kLocalHeader)
      .u16(wide.empty() ? kVersion : kVersion64)
      .u16(kUtf8)
      .u16(kStored)
      .u32(kDate)
      .u32(entry.crc)
      .u32(narrow(entry.size))
      .u32(narrow(entry.size))
      .u16(entry.name.size())
      .u16(static_cast<std::uint64_t>(extra_bytes))
      .text(entry.name)
      .text(wide)
      .u16(kPaddingField)
      .u16(padding)
      .text(std::string(padding, 'Z'))
      .bytes();
}

std::string directory(const std::vector<Placed>& entries, std::int64_t offset) {
  std::string headers;
  for (const Placed& entry : entries) headers += central_header(entry);
  const auto count = static_cast<std::uint64_t>(entries.size());
  const auto length = static_cast<std::int64_t>(headers.size());
  const bool many = count >= kIn64Short;
  Record end;
  if (many || is_wide(offset) || is_wide(length)) {
    end.u32(kEnd64)
        .u64(kEnd64Bytes - 12)  // what follows this field
        .u16(kVersion64)
        .u16(kVersion64)
        .u32(0)
        .u32(0)
        .u64(count)
        .u64(count)
        .u64(static_cast<std::uint64_t>(length))
        .u64(static_cast<std::uint64_t>(offset));
    end.u32(kEnd64Locator).u32(0).u64(static_cast<std::uint64_t>(offset + length)).u32(1);
  }
  const std::uint64_t short_count = many ? kIn64Short : count;
  end.u32(kEnd)
      .u16(0)
      .u16(0)
      .u16(short_count)
      .u16(short_count)
      .u32(narrow(length))
      .u32(narrow(offset))
      .u16(0);
  return headers + end.bytes();
}

}  // namespace floe::zip
