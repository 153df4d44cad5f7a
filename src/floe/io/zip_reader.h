// The directory of a zip archive, for archives that hold tensors: entries are stored as they are, so
// each is a range of bytes in the file. Zip64 included.
//
// The archive may be a part of a larger file. Compressed entries are listed (TorchScript compresses
// its code) but have no range. Checksums are not compared: torch itself writes archives without valid
// ones (torch.serialization.set_crc32_options) and never looks at them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "floe/io/file.h"

namespace floe {

struct ZipEntry {
  std::string name;
  std::int64_t size = 0;           // uncompressed
  std::int64_t header_offset = 0;  // of the local header, in the archive
  std::uint16_t method = 0;        // 0: stored
  std::uint16_t flags = 0;
};

class ZipReader {
 public:
  // Throws DataError when this is no archive, is cut off, or its directory says what cannot be.
  explicit ZipReader(std::shared_ptr<const File> file);
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

}  // namespace floe
