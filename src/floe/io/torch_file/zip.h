// Zip archives of stored entries: read, written, and their records (PKWARE's APPNOTE) as far as
// these need them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "floe/io/file/file.h"

namespace floe::zip {

static_assert(std::endian::native == std::endian::little, "zip records are little-endian");

constexpr std::uint32_t kLocalHeader = 0x04034b50, kCentralHeader = 0x02014b50, kEnd = 0x06054b50,
                        kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50;
constexpr std::int64_t kLocalHeaderBytes = 30, kCentralHeaderBytes = 46, kEndBytes = 22,
                       kEnd64Bytes = 56, kEnd64LocatorBytes = 20;
constexpr std::uint16_t kExtra64 = 0x0001;  // the extra field with 64-bit sizes and offset
constexpr std::uint16_t kStored = 0;
constexpr std::uint16_t kEncrypted = 0x0001, kUtf8 = 0x0800;  // flags
// In a 16- or 32-bit field: the value is in the zip64 record.
constexpr std::uint16_t kIn64Short = 0xffff;
constexpr std::uint32_t kIn64 = 0xffffffff;

// The fields of a record to write, one after another.
class Record {
 public:
  Record& u16(std::uint64_t value) { return put<std::uint16_t>(value); }
  Record& u32(std::uint64_t value) { return put<std::uint32_t>(value); }
  Record& u64(std::uint64_t value) { return put<std::uint64_t>(value); }
  Record& text(std::string_view text) {
    bytes_ += text;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  template <class Number>
  Record& put(std::uint64_t value) {
    const auto number = static_cast<Number>(value);
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
    return *this;
  }
  std::string bytes_;
};

// An entry whose place is decided, for whoever writes its bytes himself: offsets are from the
// beginning of the archive.
struct Placed {
  std::string name;
  std::int64_t size = 0;
  std::int64_t header_offset = 0, data_offset = 0;
  std::uint32_t crc = 0;

  std::int64_t end() const { return data_offset + size; }
};

// The entry whose header stands at `offset` and whose bytes begin at a multiple of `alignment`.
// Throws Error when the archive would have more than 2^63 bytes.
Placed place(std::string name, std::int64_t size, std::int64_t offset, std::int64_t alignment);
// From header_offset up to data_offset.
std::string local_header(const Placed& entry);
// What follows the last entry, at `offset`.
std::string directory(const std::vector<Placed>& entries, std::int64_t offset);

}  // namespace floe::zip

namespace floe {

struct ZipEntry {
  std::string name;
  std::int64_t size = 0;           // uncompressed
  std::int64_t header_offset = 0;  // of the local header, in the archive
  std::uint16_t method = 0;        // 0: stored
  std::uint16_t flags = 0;
};

// The directory of a zip archive, for archives that hold tensors: entries are stored as they are,
// so each is a range of bytes in the file. Zip64 included.
//
// The archive may be a part of a larger file. Compressed entries are listed (TorchScript compresses
// its code) but have no range. Checksums are not compared: torch itself writes archives without
// valid ones (torch.serialization.set_crc32_options) and never looks at them.
class ZipReader {
 public:
  // Throws DataError when this is no archive, is cut off, or its directory says what cannot be.
  explicit ZipReader(const std::shared_ptr<const File>& file);
  // The archive in the bytes [offset, offset + length) of the file.
  ZipReader(std::shared_ptr<const File> file, std::int64_t offset, std::int64_t length);

  const std::shared_ptr<const File>& file() const { return file_; }
  // In the order of the directory.
  const std::vector<ZipEntry>& entries() const { return entries_; }
  // Null when there is none of this name.
  const ZipEntry* find(const std::string& name) const;
  // Where the bytes of a stored entry begin in the file.
  std::int64_t data_offset(const ZipEntry& entry) const;
  // The whole entry; throws DataError when it is larger than `most_bytes`.
  std::string read(const ZipEntry& entry, std::int64_t most_bytes) const;

  // True when the bytes begin like a zip archive with at least one entry.
  static bool is_zip(const File& file);

 private:
  struct Directory {
    std::int64_t offset = 0, length = 0, entries = 0;
  };

  std::string bytes_at(std::int64_t offset, std::int64_t length) const;
  std::int64_t find_end() const;
  Directory find_directory() const;
  void read_directory(const Directory& directory);
  std::int64_t bounded(std::uint64_t value) const;
  template <class... Parts>
  void check(bool condition, const Parts&... parts) const;

  std::shared_ptr<const File> file_;
  std::int64_t begin_, length_;
  std::int64_t data_end_ = 0;  // where the directory begins: entries lie before it
  std::vector<ZipEntry> entries_;
  std::map<std::string, std::size_t> by_name_;
};

// Writing a zip archive of stored entries whose bytes come in pieces: each entry gets its place
// when it is declared, so entries can be written in any order and side by side.
//
// Threads: one at a time. Zip64 records are written where 32 bits are too few.
class ZipWriter {
 public:
  // The bytes of every entry begin at a multiple of `alignment`, as readers that map files like it.
  explicit ZipWriter(const std::string& path, std::int64_t alignment = 64);

  const std::string& path() const { return file_.path(); }
  // Returns the number of the entry.
  std::size_t declare(const std::string& name, std::int64_t size);
  // The next bytes of the entry.
  void write(std::size_t entry, std::span<const std::byte> bytes);
  // A whole entry.
  void add(const std::string& name, std::string_view bytes);
  // Bytes of the entry that were not written yet.
  std::int64_t missing(std::size_t entry) const;
  // Every entry must be complete. The file appears under its name now.
  void finish();

 private:
  void put(std::int64_t offset, const std::string& bytes);

  AtomicFile file_;
  std::int64_t alignment_;
  std::vector<zip::Placed> entries_;
  std::vector<std::int64_t> written_;  // of each entry
  std::set<std::string> names_;
};

}  // namespace floe
