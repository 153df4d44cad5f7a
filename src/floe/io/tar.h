// Reading tar shards as a stream, member by member.
//
//   TarReader reader("pipe:aws s3 cp s3://bucket/000001.tar -");
//   TarEntry entry;
//   while (reader.next(entry)) use(entry.name, entry.data);
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace floe {

struct TarEntry {
  std::string name;  // as stored: any bytes
  std::vector<std::byte> data;
};

class TarReader {
 public:
  // A path, or "pipe:COMMAND": what the shell command writes. gzip, bzip2, xz, zstd and lz4 are told
  // by their content. Throws DataError when there is no such file.
  explicit TarReader(const std::string& where);
  ~TarReader();
  TarReader(const TarReader&) = delete;
  TarReader& operator=(const TarReader&) = delete;

  // The next regular file, in order, or false at the end; `entry`'s memory is used again. Throws
  // DataError that names the shard, the place and the defect when the stream is damaged, cut off, or
  // its command failed; every complete member before that has been given. After an error or the end
  // it always returns false.
  bool next(TarEntry& entry);

  // Byte of the (decompressed) stream where the header of the last given entry begins.
  std::uint64_t position() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace floe
