// Philox4x32-10: random numbers as a function of (key, counter), so that any part of a stream can
// be drawn without the rest. (J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// 2011.)
#pragma once

#include <array>
#include <cstdint>

namespace floe {

class Philox {
 public:
  explicit constexpr Philox(std::uint64_t key)
      : key0_(static_cast<std::uint32_t>(key)), key1_(static_cast<std::uint32_t>(key >> 32)) {}

  // The four 32-bit words of block `index`.
  constexpr std::array<std::uint32_t, 4> block(std::uint64_t index) const {
    std::array<std::uint32_t, 4> x{static_cast<std::uint32_t>(index),
                                   static_cast<std::uint32_t>(index >> 32), 0, 0};
    std::uint32_t k0 = key0_, k1 = key1_;
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = 0xD2511F53ULL * x[0];
      const std::uint64_t b = 0xCD9E8D57ULL * x[2];
      x = {static_cast<std::uint32_t>(b >> 32) ^ x[1] ^ k0, static_cast<std::uint32_t>(b),
           static_cast<std::uint32_t>(a >> 32) ^ x[3] ^ k1, static_cast<std::uint32_t>(a)};
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    return x;
  }

 private:
  std::uint32_t key0_, key1_;
};

}  // namespace floe
