// A file that only grows, a whole piece at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace floe::metrics {

class AppendFile {
 public:
  // Opens for appending; makes the file when there is none.
  explicit AppendFile(std::string path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }
  // One write to the file system; nothing is held back in the process. When it fails (a full disk)
  // the part that was written is taken back and floe::Error says why.
  void append(std::string_view bytes);

 private:
  std::string path_;
  int fd_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace floe::metrics
