#include "floe/metrics/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "floe/core/error.h"

namespace floe::metrics {

AppendFile::AppendFile(std::string path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  require(fd_ >= 0, "cannot open '", path_, "' for writing: ", std::strerror(errno));
  struct stat status {};
  if (::fstat(fd_, &status) == 0) size_ = status.st_size;
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

void AppendFile::append(std::string_view bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::write(fd_, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      const int reason = errno;
      const bool whole = ::ftruncate(fd_, static_cast<off_t>(size_)) == 0;
      throw Error(str("cannot write to '", path_, "': ", std::strerror(reason),
                      whole ? "" : "; its end is damaged"));
    }
    done += static_cast<std::size_t>(put);
  }
  size_ += static_cast<std::int64_t>(bytes.size());
}

}  // namespace floe::metrics
