// Where the bytes of a shard come from: a file or a command's output, decompressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace floe {

class TarStream {
 public:
  virtual ~TarStream() = default;
  // Fills `out` as far as it can, at least one byte; 0 at the end of the stream. Throws DataError
  // when the stream is damaged or its command failed, after all bytes before that were given.
  virtual std::size_t read(std::span<std::byte> out) = 0;
  // Reads what is left where that shows whether the stream was whole: the exit status of a command,
  // the checksum of compressed data.
  virtual void finish() {}
};

// `where` is a path or "pipe:COMMAND"; gzip, bzip2, xz, zstd and lz4 are told by their content.
std::unique_ptr<TarStream> open_tar_stream(const std::string& where);

}  // namespace floe
