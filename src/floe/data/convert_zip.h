// The lines of the first file in a zip archive, read as a stream.
#pragma once

#include <memory>
#include <string>
#include <vector>

struct archive;

namespace floe::data {

class ZipLines {
 public:
  // Throws DataError that names the archive when it cannot be read or is empty.
  explicit ZipLines(const std::string& path);

  // The next line with its end mark, or false behind the last. Throws DataError for damage and for a
  // line of more than a gigabyte.
  bool next(std::string& line);

 private:
  struct Free {
    void operator()(archive* opened) const;
  };
  bool refill();
  [[noreturn]] void fail() const;

  std::string path_;
  std::unique_ptr<archive, Free> archive_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace floe::data
