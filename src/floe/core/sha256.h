// SHA-256 (FIPS 180-4): digests of pictures and files that other programs can compute as well.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace floe {

class Sha256 {
 public:
  void add(std::span<const std::byte> bytes);
  // The digest of everything added; nothing may be added afterwards.
  std::array<std::byte, 32> finish();

 private:
  void compress(const std::byte* block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};
  std::uint64_t num_bytes_ = 0;
};

// The digest as 64 hexadecimal digits, as sha256sum prints it.
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace floe
