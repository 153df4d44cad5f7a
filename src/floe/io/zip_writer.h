// Writing a zip archive of stored entries whose bytes come in pieces: each entry gets its place when
// it is declared, so entries can be written in any order and side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "floe/io/atomic_file.h"
#include "floe/io/zip_records.h"

namespace floe {

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
