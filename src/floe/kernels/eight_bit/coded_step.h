// What kernels that write rows in 8 bits do to the values first.
//
// Note [Slopes in 8 bits]
// The slope of GELU lies between -0.13 and 1.13, and backward multiplies with nothing else, so that
// a byte of it stands for the two of x: (byte - 27) / 200, in which 0 and 1, where most of them
// lie, are exact and no other is off by more than 1/400. That is a tenth of what rounding to 8 bits
// does to the gradient right after.
#pragma once

namespace floe::kernels {

inline constexpr int kSlopeZero = 27;
inline constexpr float kSlopeSteps = 200;

// `gelu_slopes`: the product with the slopes of GELU.
enum class CodedStep { none, quick_gelu, gelu, gelu_slopes };

}  // namespace floe::kernels
