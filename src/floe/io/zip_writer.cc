#include "floe/io/zip_writer.h"

#include <zlib.h>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/io/json_text.h"
#include "floe/io/zip_format.h"

namespace floe {
namespace {

using zip::Record;

constexpr std::uint16_t kVersion = 20, kVersion64 = 45;
constexpr std::uint32_t kDate = 0x00210000;  // 1980-01-01: equal content makes equal files
constexpr std::int64_t kExtraHead = 4;       // id and length of an extra field
constexpr std::uint16_t kPaddingField = 0x4246;

bool is_wide(std::int64_t value) { return value >= zip::kIn64; }

std::uint32_t narrow(std::int64_t value) {
  return is_wide(value) ? zip::kIn64 : static_cast<std::uint32_t>(value);
}

// The 64-bit values that do not fit into the header itself.
std::string extra64(std::initializer_list<std::int64_t> values) {
  Record field;
  for (const std::int64_t value : values)
    if (is_wide(value)) field.u64(static_cast<std::uint64_t>(value));
  if (field.bytes().empty()) return "";
  return Record().u16(zip::kExtra64).u16(field.bytes().size()).text(field.bytes()).bytes();
}

}  // namespace

ZipWriter::ZipWriter(const std::string& path, std::int64_t alignment)
    : file_(path), alignment_(alignment) {}

std::size_t ZipWriter::declare(const std::string& name, std::int64_t size) {
  require(!name.empty() && name.size() <= 0xff00, "'", path(),
          "': a zip entry cannot have the name ", quoted(name));
  require(names_.insert(name).second, "'", path(), "': the zip entry ", quoted(name),
          " was declared twice");
  require(size >= 0, "'", path(), "': the zip entry ", quoted(name), " has the size ", size);
  Entry entry{name, size, 0, end_, 0, 0};
  const std::int64_t least = end_ + zip::kLocalHeaderBytes +
                             static_cast<std::int64_t>(name.size()) +
                             static_cast<std::int64_t>(extra64({size, size}).size()) + kExtraHead;
  entry.data_offset = round_up(least, alignment_);
  require(!__builtin_add_overflow(entry.data_offset, size, &end_), "'", path(),
          "' would have more than 2^63 bytes");
  entries_.push_back(std::move(entry));
  return entries_.size() - 1;
}

void ZipWriter::write(std::size_t number, std::span<const std::byte> bytes) {
  Entry& entry = entries_.at(number);
  const auto count = static_cast<std::int64_t>(bytes.size());
  require(count <= missing(number), "'", path(), "': the zip entry ", quoted(entry.name), " has ",
          entry.size, " bytes, but ", entry.written + count, " were written");
  file_.write_at(entry.data_offset + entry.written, bytes);
  entry.crc = static_cast<std::uint32_t>(
      ::crc32_z(entry.crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
  entry.written += count;
}

void ZipWriter::add(const std::string& name, std::string_view bytes) {
  write(declare(name, static_cast<std::int64_t>(bytes.size())), std::as_bytes(std::span(bytes)));
}

std::int64_t ZipWriter::missing(std::size_t number) const {
  const Entry& entry = entries_.at(number);
  return entry.size - entry.written;
}

void ZipWriter::put(std::int64_t offset, const std::string& bytes) {
  file_.write_at(offset, std::as_bytes(std::span(bytes)));
}

std::string ZipWriter::local_header(const Entry& entry) const {
  const std::string wide = extra64({entry.size, entry.size});
  const std::int64_t extra_bytes = entry.data_offset - entry.header_offset -
                                   zip::kLocalHeaderBytes -
                                   static_cast<std::int64_t>(entry.name.size());
  const auto padding = static_cast<std::size_t>(extra_bytes - kExtraHead) - wide.size();
  return Record()
      .u32(zip::kLocalHeader)
      .u16(wide.empty() ? kVersion : kVersion64)
      .u16(zip::kUtf8)
      .u16(zip::kStored)
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

std::string ZipWriter::central_header(const Entry& entry) const {
  const std::string wide = extra64({entry.size, entry.size, entry.header_offset});
  const std::uint16_t version = wide.empty() ? kVersion : kVersion64;
  return Record()
      .u32(zip::kCentralHeader)
      .u16(version)
      .u16(version)
      .u16(zip::kUtf8)
      .u16(zip::kStored)
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

void ZipWriter::finish() {
  for (const Entry& entry : entries_) {
    require(entry.written == entry.size, "'", path(), "': the zip entry ", quoted(entry.name),
            " has ", entry.size, " bytes, but only ", entry.written, " were written");
    put(entry.header_offset, local_header(entry));
  }
  const std::int64_t directory_offset = end_;
  std::string directory;
  for (const Entry& entry : entries_) directory += central_header(entry);
  const auto count = static_cast<std::uint64_t>(entries_.size());
  const auto length = static_cast<std::int64_t>(directory.size());
  const bool many = count >= zip::kIn64Short;
  Record end;
  if (many || is_wide(directory_offset) || is_wide(length)) {
    end.u32(zip::kEnd64)
        .u64(zip::kEnd64Bytes - 12)  // what follows this field
        .u16(kVersion64)
        .u16(kVersion64)
        .u32(0)
        .u32(0)
        .u64(count)
        .u64(count)
        .u64(static_cast<std::uint64_t>(length))
        .u64(static_cast<std::uint64_t>(directory_offset));
    end.u32(zip::kEnd64Locator)
        .u32(0)
        .u64(static_cast<std::uint64_t>(directory_offset + length))
        .u32(1);
  }
  const std::uint64_t short_count = many ? zip::kIn64Short : count;
  end.u32(zip::kEnd)
      .u16(0)
      .u16(0)
      .u16(short_count)
      .u16(short_count)
      .u32(narrow(length))
      .u32(narrow(directory_offset))
      .u16(0);
  put(directory_offset, directory + end.bytes());
  file_.commit();
}

}  // namespace floe
