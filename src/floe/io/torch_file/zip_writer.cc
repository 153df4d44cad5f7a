#include <utility>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/io/torch_file/zip.h"

namespace floe {

ZipWriter::ZipWriter(const std::string& path, std::int64_t alignment)
    : file_(path), alignment_(alignment) {}

std::size_t ZipWriter::declare(const std::string& name, std::int64_t size) {
  require(!name.empty() && name.size() <= 0xff00, "'", path(),
          "': a zip entry cannot have the name ", quoted(name));
  require(names_.insert(name).second, "'", path(), "': the zip entry ", quoted(name),
          " was declared twice");
  require(size >= 0, "'", path(), "': the zip entry ", quoted(name), " has the size ", size);
  const std::int64_t end = entries_.empty() ? 0 : entries_.back().end();
  entries_.push_back(zip::place(name, size, end, alignment_));
  written_.push_back(0);
  return entries_.size() - 1;
}

void ZipWriter::write(std::size_t number, std::span<const std::byte> bytes) {
  zip::Placed& entry = entries_.at(number);
  const auto count = static_cast<std::int64_t>(bytes.size());
  require(count <= missing(number), "'", path(), "': the zip entry ", quoted(entry.name), " has ",
          entry.size, " bytes, but ", written_[number] + count, " were written");
  file_.write_at(entry.data_offset + written_[number], bytes);
  entry.crc = crc32(bytes, entry.crc);
  written_[number] += count;
}

void ZipWriter::add(const std::string& name, std::string_view bytes) {
  write(declare(name, static_cast<std::int64_t>(bytes.size())), std::as_bytes(std::span(bytes)));
}

std::int64_t ZipWriter::missing(std::size_t number) const {
  return entries_.at(number).size - written_[number];
}

void ZipWriter::finish() {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    require(missing(i) == 0, "'", path(), "': the zip entry ", quoted(entries_[i].name), " has ",
            entries_[i].size, " bytes, but only ", written_[i], " were written");
    put(entries_[i].header_offset, zip::local_header(entries_[i]));
  }
  const std::int64_t end = entries_.empty() ? 0 : entries_.back().end();
  put(end, zip::directory(entries_, end));
  file_.commit();
}

void ZipWriter::put(std::int64_t offset, const std::string& bytes) {
  file_.write_at(offset, std::as_bytes(std::span(bytes)));
}

}  // namespace floe

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
