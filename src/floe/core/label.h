// The label of a token that nothing is learned from, in samples and in packed batches.
#pragma once

#include <cstdint>

namespace floe {

constexpr std::int32_t kNoLabel = -100;

}  // namespace floe
