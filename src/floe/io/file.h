// A file opened for reading, by position: no cursor, so any number of threads may read at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace floe {

class File {
 public:
  // Opens a regular file; throws DataError that names the path when there is none or it is no file.
  explicit File(std::string path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  // The size when the file was opened.
  std::int64_t size() const { return size_; }
  // Fills all of `out` from the bytes at `offset`; throws DataError when the file ends before that.
  // Thread-safe.
  void read_at(std::int64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  int fd_ = -1;
  std::int64_t size_ = 0;
};

// The whole file as text; throws DataError when it is larger than `most_bytes`.
std::string read_text(const std::string& path, std::int64_t most_bytes);

}  // namespace floe
