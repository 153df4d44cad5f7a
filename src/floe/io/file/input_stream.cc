#include "floe/io/file/input_stream.h"

#include <archive.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#include "floe/core/error.h"
#include "floe/io/file/file.h"

namespace floe {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kBlockBytes = 64 * 1024;  // of compressed data
constexpr int kLookMs = 100;                    // how often a wait looks whether it goes on

void drain(InputStream& stream) {
  std::array<std::byte, 4096> unused;
  while (stream.read(unused) > 0) {
  }
}

class FileStream : public InputStream {
 public:
  explicit FileStream(const std::string& path) : path_(path) {
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) {
      const int error = errno;
      const std::string what = str("cannot open shard '", path, "'");
      require_resources(error, what);
      throw DataError(str(what, ": ", std::strerror(error)));
    }
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~FileStream() override { ::close(fd_); }
  FileStream(const FileStream&) = delete;
  FileStream& operator=(const FileStream&) = delete;

  std::size_t read(std::span<std::byte> out) override {
    for (;;) {
      const ssize_t got = ::read(fd_, out.data(), out.size());
      if (got >= 0) return static_cast<std::size_t>(got);
      require<DataError>(errno == EINTR, "cannot read shard '", path_, "': ", std::strerror(errno));
    }
  }

 private:
  std::string path_;
  int fd_ = -1;
};

class CommandStream : public InputStream {
 public:
  CommandStream(std::string command, const std::atomic<bool>* stop)
      : command_(std::move(command)), stop_(stop) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      require_resources(errno, str("cannot make a pipe for '", command_, "'"));
      throw Error(str("cannot make a pipe: ", std::strerror(errno)));
    }
    fd_ = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    // Signals to the run's group (Ctrl-C, and what a launcher passes on) are not for the command: a
    // shard would be cut off where it is read. Such a group cannot read from a terminal.
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setpgroup(&attributes, 0);
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);  // a run ignores it; a command that nobody reads has to end
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
    const char* words[]{"sh", "-c", command_.c_str(), nullptr};
    const int error = ::posix_spawn(&child_, "/bin/sh", &actions, &attributes,
                                    const_cast<char**>(words), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (error != 0) {
      ::close(fd_);
      require_resources(error, str("cannot start '", command_, "'"));
      throw DataError(str("cannot start '", command_, "': ", std::strerror(error)));
    }
  }
  ~CommandStream() override {
    ::close(fd_);
    if (child_ > 0) end();  // left before its end
  }
  CommandStream(const CommandStream&) = delete;
  CommandStream& operator=(const CommandStream&) = delete;

  std::size_t read(std::span<std::byte> out) override {
    for (;;) {
      require<DataError>(!stop_ || !stop_->load(), "reading from '", command_, "' was stopped");
      pollfd readable{fd_, POLLIN, 0};
      if (stop_ && ::poll(&readable, 1, kLookMs) <= 0) continue;
      const ssize_t got = ::read(fd_, out.data(), out.size());
      if (got > 0) return static_cast<std::size_t>(got);
      if (got == 0) break;
      require<DataError>(errno == EINTR, "cannot read from '", command_,
                         "': ", std::strerror(errno));
    }
    if (child_ > 0) {
      const int status = wait();
      require<DataError>(!WIFSIGNALED(status), "the command '", command_, "' was ended by signal ",
                         WTERMSIG(status));
      require<DataError>(WEXITSTATUS(status) == 0, "the command '", command_,
                         "' failed with exit status ", WEXITSTATUS(status));
    }
    return 0;
  }
  void finish() override { drain(*this); }

 private:
  int wait() {
    int status = 0;
    while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    child_ = -1;
    return status;
  }
  // With all processes that it has started, which may hold on to this one's stderr.
  void end() {
    ::kill(-child_, SIGTERM);
    siginfo_t info{};
    for (int i = 0; i < 2000 && info.si_pid == 0; ++i) {
      // Until it is reaped, its number cannot belong to another group.
      if (::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOHANG | WNOWAIT) != 0)
        break;
      if (info.si_pid == 0) std::this_thread::sleep_for(1ms);
    }
    ::kill(-child_, SIGKILL);
    wait();
  }

  std::string command_;
  const std::atomic<bool>* stop_;
  int fd_ = -1;
  pid_t child_ = -1;
};

// Puts bytes that were looked at back in front.
class RewoundStream : public InputStream {
 public:
  RewoundStream(std::vector<std::byte> front, std::unique_ptr<InputStream> rest)
      : front_(std::move(front)), rest_(std::move(rest)) {}
  std::size_t read(std::span<std::byte> out) override {
    if (at_ == front_.size()) return rest_->read(out);
    const std::size_t count = std::min(out.size(), front_.size() - at_);
    std::memcpy(out.data(), &front_[at_], count);
    at_ += count;
    return count;
  }
  void finish() override { rest_->finish(); }

 private:
  std::vector<std::byte> front_;
  std::size_t at_ = 0;
  std::unique_ptr<InputStream> rest_;
};

// gzip through zlib itself: it gives every byte before a damage, while libarchive's filter keeps
// the block in which the damage lies.
class GzipStream : public InputStream {
 public:
  explicit GzipStream(std::unique_ptr<InputStream> source)
      : source_(std::move(source)), buffer_(kBlockBytes) {
    require(inflateInit2(&zlib_, 15 + 16) == Z_OK, "zlib is out of memory");
  }
  ~GzipStream() override { inflateEnd(&zlib_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  std::size_t read(std::span<std::byte> out) override {
    if (at_end_ || out.empty()) return 0;
    zlib_.next_out = reinterpret_cast<Bytef*>(out.data());
    zlib_.avail_out = static_cast<uInt>(std::min<std::size_t>(out.size(), 1U << 30));
    const std::size_t wanted = zlib_.avail_out;
    while (zlib_.avail_out == wanted) {
      if (zlib_.avail_in == 0 && !refill()) {
        at_end_ = true;
        require<DataError>(between_members_, "the gzip data is cut off");
        return 0;
      }
      if (between_members_ && !begin_member()) return 0;
      const int status = inflate(&zlib_, Z_NO_FLUSH);
      if (status == Z_STREAM_END) {
        between_members_ = true;
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        // What came before the damage is given first.
        if (zlib_.avail_out != wanted) return wanted - zlib_.avail_out;
        at_end_ = true;
        throw DataError("the gzip data is damaged");
      }
    }
    return wanted - zlib_.avail_out;
  }
  void finish() override { drain(*this); }

 private:
  bool refill() {
    const std::size_t got = source_->read(buffer_);
    zlib_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
    zlib_.avail_in = static_cast<uInt>(got);
    return got > 0;
  }
  // Behind a member another one may follow; zeros and other padding end the stream.
  bool begin_member() {
    between_members_ = false;
    if (*zlib_.next_in != 0x1f) {
      at_end_ = true;
      source_->finish();
      return false;
    }
    inflateReset(&zlib_);
    return true;
  }

  std::unique_ptr<InputStream> source_;
  std::vector<std::byte> buffer_;
  z_stream zlib_{};
  bool between_members_ = false, at_end_ = false;
};

// Other compressions through libarchive's filters (only those that run no other program).
class FilterStream : public InputStream {
 public:
  explicit FilterStream(std::unique_ptr<InputStream> source)
      : source_(std::move(source)), buffer_(kBlockBytes), archive_(archive_read_new()) {
    require(archive_ != nullptr, "libarchive is out of memory");
    archive_read_support_filter_bzip2(archive_.get());
    archive_read_support_filter_xz(archive_.get());
    archive_read_support_filter_zstd(archive_.get());
    archive_read_support_filter_lz4(archive_.get());
    archive_read_support_format_raw(archive_.get());
    const auto read_more = [](archive*, void* self, const void** bytes) -> la_ssize_t {
      return static_cast<FilterStream*>(self)->refill(bytes);
    };
    check(archive_read_open(archive_.get(), this, nullptr, read_more, nullptr));
    archive_entry* entry = nullptr;
    check(archive_read_next_header(archive_.get(), &entry));
  }

  std::size_t read(std::span<std::byte> out) override {
    if (block_.empty()) next_block();
    const std::size_t count = std::min(out.size(), block_.size());
    std::copy_n(block_.begin(), count, out.begin());
    block_ = block_.subspan(count);
    return count;
  }
  void finish() override {
    drain(*this);
    source_->finish();  // libarchive need not have read behind the end mark
  }

 private:
  struct Free {
    void operator()(archive* a) const { archive_read_free(a); }
  };
  la_ssize_t refill(const void** bytes) {
    try {
      *bytes = buffer_.data();
      return static_cast<la_ssize_t>(source_->read(buffer_));
    } catch (const Error& error) {  // must not pass through libarchive
      // Told behind the last block: some filters forget errors, others also what came before them.
      source_error_ = error.what();
      return 0;
    }
  }
  // What the filter has come to: archive_read_data would lose earlier blocks with the error of a
  // later one.
  void next_block() {
    const void* bytes = nullptr;
    std::size_t size = 0;
    la_int64_t place = 0;
    while (!at_end_ && size == 0) {
      const int status = archive_read_data_block(archive_.get(), &bytes, &size, &place);
      if (status != ARCHIVE_EOF && status >= ARCHIVE_WARN) continue;
      at_end_ = true;
      check(status);
    }
    if (!at_end_) block_ = {static_cast<const std::byte*>(bytes), size};
  }
  void check(int status) {
    const bool goes_on = status != ARCHIVE_EOF && status >= ARCHIVE_WARN;
    if (!goes_on && !source_error_.empty()) throw DataError(source_error_);
    require<DataError>(status >= ARCHIVE_WARN, "the compressed data is damaged or cut off");
  }

  std::unique_ptr<InputStream> source_;
  std::vector<std::byte> buffer_;
  std::string source_error_;
  std::span<const std::byte> block_;  // what of the last block is still to be given
  bool at_end_ = false;
  std::unique_ptr<archive, Free> archive_;
};

}  // namespace

std::unique_ptr<InputStream> open_input(const std::string& where, const std::atomic<bool>* stop) {
  constexpr std::string_view kPipe = "pipe:";
  std::unique_ptr<InputStream> source;
  if (where.starts_with(kPipe))
    source = std::make_unique<CommandStream>(where.substr(kPipe.size()), stop);
  else
    source = std::make_unique<FileStream>(where);

  std::vector<std::byte> front(6);
  std::size_t have = 0;
  while (have < front.size()) {
    const std::size_t got = source->read(std::span(front).subspan(have));
    if (got == 0) break;
    have += got;
  }
  front.resize(have);
  const std::string_view magic(reinterpret_cast<const char*>(front.data()), front.size());
  source = std::make_unique<RewoundStream>(std::move(front), std::move(source));

  using namespace std::string_view_literals;
  if (magic.starts_with("\x1f\x8b\x08"sv)) return std::make_unique<GzipStream>(std::move(source));
  for (const std::string_view known : {"BZh"sv,
                                       "\xfd"
                                       "7zXZ\0"sv,
                                       "\x28\xb5\x2f\xfd"sv, "\x04\x22\x4d\x18"sv})
    if (magic.starts_with(known)) return std::make_unique<FilterStream>(std::move(source));
  return source;
}

}  // namespace floe
