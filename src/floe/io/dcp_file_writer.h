// Writing one rank's .distcp file: items back to back, each with a checksum of all its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/io/pickle_value.h"

namespace floe {

class DcpFileWriter {
 public:
  struct Written {
    std::int64_t offset = 0, length = 0;
    std::uint32_t crc = 0;
  };

  // Creates the file, which must not exist. Every member throws Error that names the file when the
  // disk does not take it.
  explicit DcpFileWriter(std::string path);
  ~DcpFileWriter();
  DcpFileWriter(const DcpFileWriter&) = delete;
  DcpFileWriter& operator=(const DcpFileWriter&) = delete;

  // `data`: the elements, row-major, in host memory.
  Written add_tensor(DType dtype, const std::vector<std::int64_t>& shape,
                     std::span<const std::byte> data);
  Written add_object(const pickle::Value& value);
  std::int64_t bytes() const { return flushed_ + static_cast<std::int64_t>(waiting_.size()); }
  // Returns when everything is on disk. Nothing may be added afterwards.
  void finish();

 private:
  void append(std::span<const std::byte> bytes);
  void append(const std::string& bytes) { append(std::as_bytes(std::span(bytes))); }
  void flush();
  void put(std::int64_t offset, std::span<const std::byte> bytes);

  std::string path_;
  int fd_ = -1;
  std::vector<std::byte> waiting_;  // small items, to be written together
  std::int64_t flushed_ = 0;
};

}  // namespace floe
