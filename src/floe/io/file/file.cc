#include "floe/io/file/file.h"

#include <fcntl.h>
#include <libdeflate.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "floe/core/error.h"

namespace floe {
namespace {

namespace fs = std::filesystem;

thread_local FileCounts own_counts;

void check(const std::error_code& error, const char* what, const std::string& path) {
  require(!error, "cannot ", what, " '", path, "': ", error.message());
}

// A name beside `path` that no other process of this machine and no other thread uses.
std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  return str(path, ".tmp-", ::getpid(), "-", counter++);
}

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

// See Note [What is replaced].
void require_replaceable(const std::string& path, bool is_folder) {
  std::error_code ignored;
  const fs::file_type type = fs::status(path, ignored).type();
  const bool folder = type == fs::file_type::directory;
  require<ConfigError>(is_folder || !folder, "'", path, "' is a folder; name a file in it");
  require<ConfigError>(folder || type == fs::file_type::regular ||
                           type == fs::file_type::not_found || type == fs::file_type::none ||
                           type == fs::file_type::unknown,
                       "'", path,
                       "' is no ordinary file, but a device, a pipe or a socket, and is not "
                       "replaced; choose another name");
}

}  // namespace

void require_resources(int error, const std::string& what) {
  const bool no_files = error == EMFILE || error == ENFILE;
  require<ResourceError>(!no_files, what, ": ", std::strerror(error),
                         "; raise the limit of open files (ulimit -n)");
  require<ResourceError>(error != ENOMEM && error != EAGAIN, what, ": ", std::strerror(error),
                         "; there is too little memory, or there are too many processes");
}

void throw_errno(const char* what, const std::string& path) {
  throw Error(str("cannot ", what, " '", path, "': ", std::strerror(errno)));
}

File::File(std::string path) : path_(std::move(path)) {
  // Non-blocking, so that a named pipe is refused below instead of waited for.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) {
    const int error = errno;
    const std::string what = str("cannot open '", path_, "'");
    require_resources(error, what);
    throw DataError(str(what, ": ", std::strerror(error)));
  }
  struct stat status {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw DataError(str("'", path_, "' is not a regular file: name a file"));
  }
  size_ = status.st_size;
  ++own_counts.opened;
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
    own_counts.bytes += got;
  }
}

FileCounts file_counts() { return own_counts; }

bool path_exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<std::string> file_names_in(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entry(folder, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory)
    return names;
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error) {
    const std::string what = str("cannot read the folder '", folder, "'");
    require_resources(error.value(), what);
    throw Error(str(what, ": ", error.message()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_text(const std::string& path, std::int64_t most_bytes) {
  const File file(path);
  require<DataError>(file.size() <= most_bytes, "'", path, "' has ", file.size(),
                     " bytes, more than the ", most_bytes, " that such a file may have");
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string behind_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the kernel
  std::error_code failed;
  fs::path found = path;
  for (int i = 0; i < kMostLinks && fs::is_symlink(found, failed); ++i) {
    const fs::path next = fs::read_symlink(found, failed);
    if (failed) break;
    found = found.parent_path() / next;  // an absolute one replaces what stands before it
  }
  return found.string();
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), target_(behind_links(path_)) {
  require_replaceable(path_, /*is_folder=*/false);
  temporary_ = temporary_name(target_);
  fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) throw_errno("create", temporary_);
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
    if (put < 0) throw_errno("write", temporary_);
    done += static_cast<std::size_t>(put);
  }
}

void AtomicFile::commit() {
  require(fd_ >= 0, "'", path_, "' was committed twice");
  if (::fsync(fd_) != 0) throw_errno("sync", temporary_);
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0)
    throw_errno("rename a file to", target_);
  ::close(std::exchange(fd_, -1));
  sync_folder(folder_of(target_));  // only then is the rename on disk
}

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_errno("open the folder", path);
  // Some network file systems cannot sync a folder and say EINVAL; the rename still happened.
  const int error = ::fsync(fd) != 0 && errno != EINVAL ? errno : 0;
  ::close(fd);
  errno = error;
  if (error != 0) throw_errno("sync the folder", path);
}

void write_file_atomically(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.commit();
}

AtomicFolder::AtomicFolder(std::string target, Existing existing)
    : target_(behind_links(without_slash(std::move(target)))) {
  require_replaceable(target_, /*is_folder=*/true);
  std::error_code error;
  require<ConfigError>(existing == Existing::replace || !fs::exists(target_, error), "'", target_,
                       "' is there already; name a new folder, or replace it with --force");
  temporary_ = temporary_name(target_);
  fs::create_directories(temporary_, error);
  check(error, "create the folder", temporary_);
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
  std::error_code error;
  const std::string old = temporary_ + ".old";
  const bool replaces = fs::exists(target_, error);
  if (replaces) {
    fs::rename(target_, old, error);
    check(error, "rename", target_);
  }
  fs::rename(temporary_, target_, error);
  check(error, "rename a folder to", target_);
  committed_ = true;
  if (replaces) {
    fs::remove_all(old, error);
    check(error, "remove", old);
  }
}

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before) {
  return libdeflate_crc32(before, bytes.data(), bytes.size());
}

std::uint32_t crc32(std::string_view text, std::uint32_t before) {
  return crc32(std::as_bytes(std::span(text)), before);
}

std::uint32_t crc32(const File& file, std::int64_t first, std::int64_t count) {
  constexpr std::int64_t kAtOnce = 256 << 10;  // stays in the cache between read and checksum
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::min(count, kAtOnce)));
  std::uint32_t sum = 0;
  for (std::int64_t at = 0; at < count; at += kAtOnce) {
    const auto part =
        std::span(bytes).first(static_cast<std::size_t>(std::min(kAtOnce, count - at)));
    file.read_at(first + at, part);
    sum = crc32(part, sum);
  }
  return sum;
}

std::uint32_t crc32_joined(std::uint32_t first, std::uint32_t second, std::int64_t second_bytes) {
  return static_cast<std::uint32_t>(
      ::crc32_combine64(first, second, static_cast<z_off64_t>(second_bytes)));
}

}  // namespace floe
