// Rotary position embedding: the first `dim` features of each head turn with the position.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace floe::nn {

// Frequencies stretched for contexts longer than the model was first trained on.
struct RotaryScaling {
  enum class Kind { linear, llama3 };
  Kind kind = Kind::linear;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  double original_context = 8192;
};

struct RotarySpec {
  std::int64_t dim = 0;  // 0: none; an odd number turns one feature more
  double theta = 10000;
  std::optional<RotaryScaling> scaling;
};

// cos and sin of one batch, in fp32 and then in the model's dtype.
struct RotaryAngles {
  at::Tensor cos, sin;  // [N, 1, dim]
};
RotaryAngles rotary_angles(const RotarySpec& spec, const at::Tensor& positions,
                           at::ScalarType dtype);

// Heads that lie side by side in the rows of one tensor: head h has the features [offset + h ·
// stride, offset + h · stride + D).
struct HeadPlaces {
  std::int64_t offset = 0, heads = 0, stride = 0;
};
// Turns the heads at `a` and `b` (both, or those that have any) inside of projected [N, width],
// which must be the caller's own: where a kernel applies it is overwritten and returned. Undefined
// when none does; then use `rotate`.
at::Tensor rotate_inside(const at::Tensor& projected, const RotaryAngles& angles,
                         const HeadPlaces& a, const HeadPlaces& b);

// x [N, H, D]: features i and i + dim/2 of the first `dim` are turned as a pair.
at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles);

}  // namespace floe::nn
