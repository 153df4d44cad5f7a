// Tar archives, such as the shards of a data set: read as a stream, member by member, and written.
//
//   TarReader reader("pipe:aws s3 cp s3://bucket/000001.tar -");
//   TarEntry entry;
//   while (reader.next(entry)) use(entry.name, entry.data);
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace floe {

constexpr std::size_t kTarBlock = 512;  // bytes; headers are one, data are padded to a multiple

struct TarEntry {
  std::string name;  // as stored: any bytes
  std::vector<std::byte> data;
};

class TarReader {
 public:
  // A path, or "pipe:COMMAND": what the shell command writes. gzip, bzip2, xz, zstd and lz4 are
  // told by their content. Throws DataError when there is no such file. `stop` as in open_input().
  explicit TarReader(const std::string& where, const std::atomic<bool>* stop = nullptr);
  ~TarReader();
  TarReader(const TarReader&) = delete;
  TarReader& operator=(const TarReader&) = delete;

  // The next regular file, in order, or false at the end; `entry`'s memory is used again. Throws
  // DataError that names the shard, the place and the defect when the stream is damaged, cut off,
  // or its command failed; every complete member before that has been given. After an error or the
  // end it always returns false.
  bool next(TarEntry& entry);

  // Byte of the (decompressed) stream where the header of the last given entry begins.
  std::uint64_t position() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Writing tar shards: ustar headers as Python's tarfile writes them, pax headers for what does not
// fit into one, zeros up to a whole record of 10240 bytes at the end.
class TarWriter {
 public:
  // Where the bytes go, in order.
  using Sink = std::function<void(std::span<const std::byte>)>;
  explicit TarWriter(Sink sink) : sink_(std::move(sink)) {}

  // A regular file, readable by everyone, with owner and time fixed so that equal input gives equal
  // bytes. The name is any bytes but zero.
  void add(const std::string& name, std::span<const std::byte> data);
  // The end mark; nothing may be added afterwards.
  void finish();

  std::uint64_t num_bytes() const { return num_bytes_; }

 private:
  void put(std::span<const std::byte> bytes);
  void pad(std::uint64_t multiple);
  void put_header(const std::string& name, std::uint64_t size, char type);

  Sink sink_;
  std::uint64_t num_bytes_ = 0;
};

}  // namespace floe
