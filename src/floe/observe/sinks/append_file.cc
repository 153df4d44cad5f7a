#include "floe/observe/sinks/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/log.h"

namespace floe::observe {
namespace {

std::string pieces(std::int64_t count) {
  return str(count, count == 1 ? " record is" : " records are", " missing in it");
}

}  // namespace

AppendFile::AppendFile(std::string path, std::size_t most_waiting)
    : path_(std::move(path)), most_waiting_(most_waiting) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  require(fd_ >= 0, "cannot open '", path_, "' for writing: ", std::strerror(errno));
  struct stat status {};
  if (::fstat(fd_, &status) == 0) size_ = status.st_size;
}

AppendFile::~AppendFile() {
  put_waiting();
  const std::int64_t missing = num_missing_ + static_cast<std::int64_t>(waiting_.size());
  if (missing > 0)
    log::warn("'", path_, "': ", pieces(missing), ": it could not be written (", problem_, ")");
  ::close(fd_);
}

void AppendFile::append(std::string_view piece) {
  if (put_waiting() && put(piece)) return;
  if (waiting_bytes_ + piece.size() > most_waiting_) {
    ++num_missing_;
    return;
  }
  waiting_.emplace_back(piece);
  waiting_bytes_ += piece.size();
}

bool AppendFile::put_waiting() {
  if (waiting_.empty()) return true;
  while (!waiting_.empty()) {
    if (!put(waiting_.front())) return false;
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
  }
  if (!std::exchange(recovered_, true))
    log::info("'", path_, "' is written again; ",
              num_missing_ == 0 ? "nothing is missing in it" : pieces(num_missing_));
  return true;
}

bool AppendFile::put(std::string_view piece) {
  if (torn_ && ::ftruncate(fd_, static_cast<off_t>(size_)) != 0) return fail(errno);
  torn_ = false;
  std::size_t done = 0;
  while (done < piece.size()) {
    const ssize_t written = ::write(fd_, piece.data() + done, piece.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int reason = errno;
      torn_ = done > 0 && ::ftruncate(fd_, static_cast<off_t>(size_)) != 0;
      return fail(reason);
    }
    done += static_cast<std::size_t>(written);
  }
  size_ += static_cast<std::int64_t>(piece.size());
  return true;
}

bool AppendFile::fail(int reason) {
  problem_ = std::strerror(reason);
  if (!std::exchange(warned_, true))
    log::warn("'", path_, "' cannot be written (", problem_,
              "); the run goes on, and what belongs there waits in memory, at most ",
              format_bytes(static_cast<std::int64_t>(most_waiting_)), ", until it can");
  return false;
}

}  // namespace floe::observe
