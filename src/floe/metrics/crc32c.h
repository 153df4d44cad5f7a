// CRC-32C (Castagnoli), the checksum of TensorFlow's record files.
#pragma once

#include <cstdint>
#include <string_view>

namespace floe::metrics {

std::uint32_t crc32c(std::string_view bytes);

// As record files store it: rotated and shifted, so that the checksum of bytes that contain
// checksums stays useful.
constexpr std::uint32_t masked_crc(std::uint32_t crc) {
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

}  // namespace floe::metrics
