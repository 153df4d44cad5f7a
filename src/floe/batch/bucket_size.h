// Sizes rounded up, so that batches of nearly the same size have the same shape.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace floe {

// In steps of an eighth of the power of two below: at most an eighth more, and 16 at least.
constexpr std::int64_t bucket_step(std::int64_t size) {
  return std::max<std::int64_t>(
      16, static_cast<std::int64_t>(
              std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1))) / 8));
}
constexpr std::int64_t bucket_size(std::int64_t size) {
  const std::int64_t step = bucket_step(size);
  return (size + step - 1) / step * step;
}

}  // namespace floe
