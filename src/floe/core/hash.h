// Digests: a fast one of 64 bits, SHA-256, and both as text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace floe {

// Strong 64-bit mixing of one word (splitmix64's finaliser).
constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// A running 64-bit hash for digests and agreement checks (not for untrusted input).
class Hash64 {
 public:
  constexpr Hash64& add(std::uint64_t word) {
    state_ = mix64(state_ + 0x9e3779b97f4a7c15ULL + mix64(word));
    return *this;
  }
  constexpr Hash64& add(std::string_view text) {
    add(static_cast<std::uint64_t>(text.size()));
    std::uint64_t word = 0;
    int filled = 0;
    for (const char c : text) {
      word = word << 8 | static_cast<unsigned char>(c);
      if (++filled == 8) {
        add(word);
        word = 0;
        filled = 0;
      }
    }
    return filled ? add(word) : *this;
  }
  constexpr std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0x243f6a8885a308d3ULL;
};

constexpr std::uint64_t hash64(std::string_view text) { return Hash64().add(text).value(); }

// SHA-256 (FIPS 180-4): digests of pictures and files that other programs can compute as well.
class Sha256 {
 public:
  void add(std::span<const std::byte> bytes);
  // The digest of everything added; nothing may be added afterwards.
  std::array<std::byte, 32> finish();
  // The same as 64 hexadecimal digits, as sha256sum prints it.
  std::string finish_hex();

 private:
  void compress(const std::byte* block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};
  std::uint64_t num_bytes_ = 0;
};

std::string sha256_hex(std::span<const std::byte> bytes);

// The word's last `num_digits` hexadecimal digits: "00000000000012ab".
std::string hex_digits(std::uint64_t word, int num_digits = 16);

}  // namespace floe
