// A file that only grows, a whole piece (a line, a record) at a time.
//
// Note [A log is never worth a run]
// A disk may be full, or gone, for a while. What cannot be written then waits in memory, up to a
// bound, and goes to the file as soon as that works again; a piece that was written in part is
// taken back, so that the file holds whole pieces only. The first failure is a warning, and pieces
// that never get there are counted and reported at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace floe::observe {

class AppendFile {
 public:
  static constexpr std::size_t kMostWaiting = 16 << 20;  // bytes

  // Opens for appending; makes the file when there is none. Throws floe::Error when it cannot.
  explicit AppendFile(std::string path, std::size_t most_waiting = kMostWaiting);
  // Tries once more, and says how many pieces are missing.
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  const std::string& path() const { return path_; }
  // With what still waits.
  std::int64_t size() const { return size_ + static_cast<std::int64_t>(waiting_bytes_); }
  // One write to the file system, after what waits; see the note above for when that fails.
  void append(std::string_view piece);
  // Pieces that are not in the file, since they found no place in memory either.
  std::int64_t num_missing() const { return num_missing_; }

 private:
  bool put(std::string_view piece);
  bool put_waiting();
  bool fail(int reason);

  std::string path_;
  std::size_t most_waiting_;
  int fd_ = -1;
  std::int64_t size_ = 0;
  bool torn_ = false;  // the file has bytes behind size_
  std::deque<std::string> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::int64_t num_missing_ = 0;
  std::string problem_;                      // why the last write failed
  bool warned_ = false, recovered_ = false;  // and said so
};

}  // namespace floe::observe
