// Writing tar shards: ustar headers as Python's tarfile writes them, pax headers for what does not
// fit into one, zeros up to a whole record of 10240 bytes at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace floe {

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
