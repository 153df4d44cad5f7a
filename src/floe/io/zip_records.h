// The records around the bytes of stored zip entries, as text: for whoever places the bytes himself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace floe::zip {

// An entry whose place is decided: offsets are from the beginning of the archive.
struct Placed {
  std::string name;
  std::int64_t size = 0;
  std::int64_t header_offset = 0, data_offset = 0;
  std::uint32_t crc = 0;

  std::int64_t end() const { return data_offset + size; }
};

// The entry whose header stands at `offset` and whose bytes begin at a multiple of `alignment`. Throws
// Error when the archive would have more than 2^63 bytes.
Placed place(std::string name, std::int64_t size, std::int64_t offset, std::int64_t alignment);
// From header_offset up to data_offset.
std::string local_header(const Placed& entry);
// What follows the last entry, at `offset`.
std::string directory(const std::vector<Placed>& entries, std::int64_t offset);

}  // namespace floe::zip
