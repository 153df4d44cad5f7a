#include "floe/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "floe/core/error.h"

namespace floe {

File::File(std::string path) : path_(std::move(path)) {
  // Non-blocking, so that a named pipe is refused below instead of waited for.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  require<DataError>(fd_ >= 0, "cannot open '", path_, "': ", std::strerror(errno));
  struct stat status {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw DataError(str("'", path_, "' is not a regular file: name a file"));
  }
  size_ = status.st_size;
}

File::~File() { ::close(fd_); }

void File::read_at(std::int64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::pread(fd_, out.data() + done, out.size() - done,
                                static_cast<off_t>(offset + static_cast<std::int64_t>(done)));
    if (got < 0 && errno == EINTR) continue;
    require<DataError>(got >= 0, "cannot read '", path_, "': ", std::strerror(errno));
    require<DataError>(got > 0, "'", path_, "' ends before byte ",
                       offset + static_cast<std::int64_t>(out.size()),
                       ": it is cut off or was changed while it was read; copy it again");
    done += static_cast<std::size_t>(got);
  }
}

std::string read_text(const std::string& path, std::int64_t most_bytes) {
  const File file(path);
  require<DataError>(file.size() <= most_bytes, "'", path, "' has ", file.size(),
                     " bytes, more than the ", most_bytes, " that such a file may have");
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace floe
