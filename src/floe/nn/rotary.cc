#include "floe/nn/rotary.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

namespace floe::nn {
namespace {

at::Tensor frequencies(const RotarySpec& spec) {
  const at::Tensor exponents = at::arange(0, spec.dim, 2, at::kLong).to(at::kFloat) / spec.dim;
  at::Tensor frequency = 1.0 / at::pow(at::scalar_tensor(spec.theta, at::kFloat), exponents);
  if (!spec.scaling) return frequency;
  const RotaryScaling& scaling = *spec.scaling;
  if (scaling.kind == RotaryScaling::Kind::linear) return frequency / scaling.factor;
  // Llama 3: long waves are stretched, short ones stay, those between are mixed.
  const double longest = scaling.original_context / scaling.low_freq_factor;
  const double shortest = scaling.original_context / scaling.high_freq_factor;
  const at::Tensor wave = 2 * std::numbers::pi / frequency;
  const at::Tensor stretched = at::where(wave > longest, frequency / scaling.factor, frequency);
  const at::Tensor share = (scaling.original_context / wave - scaling.low_freq_factor) /
                           (scaling.high_freq_factor - scaling.low_freq_factor);
  const at::Tensor mixed = (1 - share) * stretched / scaling.factor + share * stretched;
  return at::where((wave >= shortest).logical_and(wave <= longest), mixed, stretched);
}

}  // namespace

RotaryAngles rotary_angles(const RotarySpec& spec, const at::Tensor& positions,
                           at::ScalarType dtype) {
  const at::Tensor angles =
      at::outer(positions.to(at::kFloat), frequencies(spec).to(positions.device()));
  const at::Tensor both = at::cat({angles, angles}, 1).unsqueeze(1);  // [N, 1, dim]
  return {both.cos().to(dtype), both.sin().to(dtype)};
}

at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles) {
  const std::int64_t dim = angles.cos.size(2), half = dim / 2;
  const at::Tensor turned = x.narrow(2, 0, dim);
  const at::Tensor crossed = at::cat({-turned.narrow(2, half, half), turned.narrow(2, 0, half)}, 2);
  const at::Tensor result = turned * angles.cos + crossed * angles.sin;
  return dim == x.size(2) ? result : at::cat({result, x.narrow(2, dim, x.size(2) - dim)}, 2);
}

}  // namespace floe::nn
