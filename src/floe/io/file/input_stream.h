// The bytes of a file or of a command's output, one after the other, decompressed on the way.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace floe {

class InputStream {
 public:
  virtual ~InputStream() = default;
  // Fills `out` as far as it can, at least one byte; 0 at the end of the stream. Throws DataError
  // when the stream is damaged or its command failed, after all bytes before that were given.
  virtual std::size_t read(std::span<std::byte> out) = 0;
  // Reads what is left where that shows whether the stream was whole: the exit status of a command,
  // the checksum of compressed data.
  virtual void finish() {}
};

// `where` is a path or "pipe:COMMAND"; gzip, bzip2, xz, zstd and lz4 are told by their
// content. Throws DataError when there is no such file. Soon after `stop` becomes true,
// reading from a command throws DataError instead of waiting for it, here and in read(). A
// command ends with the stream.
std::unique_ptr<InputStream> open_input(const std::string& where,
                                        const std::atomic<bool>* stop = nullptr);

}  // namespace floe
