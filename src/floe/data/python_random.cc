#include "floe/data/python_random.h"

#include <bit>

#include "floe/core/error.h"

namespace floe::data {
namespace {

// Python seeds with the 32-bit words of the number, lowest first, without leading zeros.
Mt19937 seeded(std::uint64_t seed) {
  const std::uint32_t words[] = {static_cast<std::uint32_t>(seed),
                                 static_cast<std::uint32_t>(seed >> 32)};
  return Mt19937::from_array({words, words[1] ? std::size_t{2} : std::size_t{1}});
}

}  // namespace

PythonRandom::PythonRandom(std::uint64_t seed) : engine_(seeded(seed)) {}

double PythonRandom::random() {
  const std::uint32_t high = engine_.next() >> 5, low = engine_.next() >> 6;
  return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}

std::uint64_t PythonRandom::bits(int count) {
  require(count >= 1 && count <= 64, "a draw has 1 to 64 bits, not ", count);
  if (count <= 32) return engine_.next() >> (32 - count);
  const std::uint64_t low = engine_.next();
  return low | std::uint64_t{engine_.next() >> (64 - count)} << 32;
}

std::uint64_t PythonRandom::below(std::uint64_t n) {
  require(n >= 1, "nothing can be drawn from an empty range");
  const int count = std::bit_width(n);
  std::uint64_t draw = bits(count);
  while (draw >= n) draw = bits(count);
  return draw;
}

std::int64_t PythonRandom::randint(std::int64_t first, std::int64_t last) {
  require(first <= last, "nothing can be drawn from ", first, " to ", last);
  return first + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(last - first) + 1));
}

}  // namespace floe::data
