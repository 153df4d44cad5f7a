#include "floe/io/crc32.h"

#include <libdeflate.h>
#include <zlib.h>

namespace floe {

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before) {
  return libdeflate_crc32(before, bytes.data(), bytes.size());
}

std::uint32_t crc32(std::string_view text, std::uint32_t before) {
  return crc32(std::as_bytes(std::span(text)), before);
}

std::uint32_t crc32_joined(std::uint32_t first, std::uint32_t second, std::int64_t second_bytes) {
  return static_cast<std::uint32_t>(
      ::crc32_combine64(first, second, static_cast<z_off64_t>(second_bytes)));
}

}  // namespace floe
