#include "floe/data/torch_random.h"

namespace floe::data {

float TorchRandom::rand() {
  constexpr std::uint32_t kMask = (1U << 24) - 1;
  return static_cast<float>(engine_.next() & kMask) * (1.0F / (1U << 24));
}

std::int64_t TorchRandom::int64() {
  const std::uint64_t high = engine_.next();
  const std::uint64_t draw = high << 32 | engine_.next();
  return static_cast<std::int64_t>(draw & (~std::uint64_t{0} >> 1));
}

}  // namespace floe::data
