#include "floe/io/dcp_file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "floe/core/error.h"
#include "floe/io/crc32.h"
#include "floe/io/dcp_item.h"

namespace floe {
namespace {

constexpr std::size_t kBuffer = 4 << 20;
// Elements go out in blocks that stay in the cache between checksum and write.
constexpr std::size_t kBlock = 512 << 10;

[[noreturn]] void fail(const char* what, const std::string& path) {
  throw Error(str("cannot ", what, " '", path, "': ", std::strerror(errno)));
}

}  // namespace

DcpFileWriter::DcpFileWriter(std::string path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("create", path_);
  waiting_.reserve(kBuffer);
}

DcpFileWriter::~DcpFileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

DcpFileWriter::Written DcpFileWriter::add_tensor(DType dtype,
                                                 const std::vector<std::int64_t>& shape,
                                                 std::span<const std::byte> data) {
  DcpItem item(dtype, shape);
  require(item.data_bytes() == static_cast<std::int64_t>(data.size()), "'", path_,
          "': a tensor of ", item.data_bytes(), " bytes was given ", data.size());
  Written written{bytes()};
  std::uint32_t crc = 0;
  std::string head;
  if (data.size() <= kBuffer / 2) {
    crc = crc32(data);
    head = item.head(crc);
    append(head);
    append(data);
  } else {
    flush();
    const std::int64_t begin = flushed_ + item.head_bytes();
    for (std::size_t at = 0; at < data.size(); at += kBlock) {
      const auto block = data.subspan(at, std::min(kBlock, data.size() - at));
      crc = crc32(block, crc);
      put(begin + static_cast<std::int64_t>(at), block);
    }
    head = item.head(crc);
    put(flushed_, std::as_bytes(std::span(head)));
    flushed_ = begin + item.data_bytes();
  }
  const std::string tail = item.tail(crc);
  append(tail);
  written.length = bytes() - written.offset;
  written.crc = crc32(tail, crc32_joined(crc32(head), crc, item.data_bytes()));
  return written;
}

DcpFileWriter::Written DcpFileWriter::add_object(const pickle::Value& value) {
  const std::string item = dcp_object_item(value);
  const Written written{bytes(), static_cast<std::int64_t>(item.size()), crc32(item)};
  append(item);
  return written;
}

void DcpFileWriter::finish() {
  flush();
  if (::fsync(fd_) != 0) fail("sync", path_);
  if (::close(std::exchange(fd_, -1)) != 0) fail("close", path_);
}

void DcpFileWriter::append(std::span<const std::byte> bytes) {
  if (waiting_.size() + bytes.size() > kBuffer) flush();
  waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
}

void DcpFileWriter::flush() {
  put(flushed_, waiting_);
  flushed_ += static_cast<std::int64_t>(waiting_.size());
  waiting_.clear();
}

void DcpFileWriter::put(std::int64_t offset, std::span<const std::byte> bytes) {
  require(fd_ >= 0, "'", path_, "' was written to after its end");
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::pwrite(fd_, bytes.data() + done, bytes.size() - done,
                                 static_cast<off_t>(offset + static_cast<std::int64_t>(done)));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write", path_);
    done += static_cast<std::size_t>(put);
  }
}

}  // namespace floe
