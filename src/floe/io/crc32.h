// CRC-32 as zip archives have it, at the speed of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace floe {

// Of `bytes`, or of what `before` is the checksum of followed by `bytes`.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);
std::uint32_t crc32(std::string_view text, std::uint32_t before = 0);
// Of two parts one after the other, from the checksums of both and the length of the second.
std::uint32_t crc32_joined(std::uint32_t first, std::uint32_t second, std::int64_t second_bytes);

}  // namespace floe
