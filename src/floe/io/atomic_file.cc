#include "floe/io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "floe/core/error.h"

namespace floe {
namespace {

[[noreturn]] void fail(const char* what, const std::string& path) {
  throw Error(str("cannot ", what, " '", path, "': ", std::strerror(errno)));
}

// A rename is on disk only when its folder is.
void sync_folder_of(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail("open the folder", folder);
  // Some network file systems cannot sync a folder and say EINVAL; the rename still happened.
  const bool failed = ::fsync(fd) != 0 && errno != EINVAL;
  ::close(fd);
  if (failed) fail("sync the folder", folder);
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  // Unique among the processes of a machine and the threads of a process.
  static std::atomic<unsigned> counter{0};
  temporary_ = str(path_, ".tmp-", ::getpid(), "-", counter++);
  fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("create", temporary_);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  require(fd_ >= 0, "'", path_, "' was written to after its commit");
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::pwrite(fd_, bytes.data() + done, bytes.size() - done,
                                 static_cast<off_t>(offset + static_cast<std::int64_t>(done)));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write", temporary_);
    done += static_cast<std::size_t>(put);
  }
}

void AtomicFile::commit() {
  require(fd_ >= 0, "'", path_, "' was committed twice");
  if (::fsync(fd_) != 0) fail("sync", temporary_);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename a file to", path_);
  ::close(std::exchange(fd_, -1));
  sync_folder_of(path_);
}

void write_file_atomically(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace floe
