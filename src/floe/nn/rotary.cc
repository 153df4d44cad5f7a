#include "floe/nn/rotary.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <numbers>

#include "floe/batch/packed_batch.h"
#include "floe/kernels/kernels.h"
#include "floe/nn/activations/kept_products.h"

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

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// The heads at both places of rows [N, width].
void turn_heads(const at::Tensor& rows, const at::Tensor& cos, const at::Tensor& sin,
                const HeadPlaces& a, const HeadPlaces& b, bool back) {
  const auto heads_at = [&](const HeadPlaces& places) {
    return rows.as_strided({rows.size(0), places.heads, cos.size(2)},
                           {rows.size(1), places.stride, 1}, rows.storage_offset() + places.offset);
  };
  kernels::rotate_(heads_at(a), heads_at(b), cos, sin, back);
}

struct RotateInside : torch::autograd::Function<RotateInside> {
  static Variable forward(AutogradContext* context, const Variable& rows, const at::Tensor& cos,
                          const at::Tensor& sin, HeadPlaces a, HeadPlaces b) {
    if (!step_is_kept(rows)) turn_heads(rows, cos, sin, a, b, /*back=*/false);
    context->mark_dirty({rows});
    context->save_for_backward({cos, sin});
    for (const auto& [key, value] : numbers(a, b)) context->saved_data[key] = value;
    return rows;
  }

  // Takes the list that the caller has, and not a copy, which would hold every gradient twice.
  static variable_list backward(AutogradContext* context, variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto number = [&](const char* key) { return context->saved_data[key].toInt(); };
    const HeadPlaces a{number("a.offset"), number("a.heads"), number("a.stride")};
    const HeadPlaces b{number("b.offset"), number("b.heads"), number("b.stride")};
    at::Tensor grad = std::move(grads[0]);
    // Somebody else's gradient is not ours to turn.
    const bool own =
        grad.use_count() == 1 && grad.storage().use_count() == 1 && grad.is_contiguous();
    if (!own) grad = grad.clone(at::MemoryFormat::Contiguous);
    turn_heads(grad, saved[0], saved[1], a, b, /*back=*/true);
    return {grad, {}, {}, {}, {}};
  }

 private:
  static std::vector<std::pair<const char*, std::int64_t>> numbers(const HeadPlaces& a,
                                                                   const HeadPlaces& b) {
    return {{"a.offset", a.offset}, {"a.heads", a.heads}, {"a.stride", a.stride},
            {"b.offset", b.offset}, {"b.heads", b.heads}, {"b.stride", b.stride}};
  }
};

// x [N, H, D] as a tensor of its own.
struct Rotate : torch::autograd::Function<Rotate> {
  static Variable forward(AutogradContext* context, const Variable& x, const at::Tensor& cos,
                          const at::Tensor& sin) {
    context->save_for_backward({cos, sin});
    at::Tensor turned = x.clone(at::MemoryFormat::Contiguous);
    kernels::rotate_(turned, {}, cos, sin, /*back=*/false);
    return turned;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor grad = grads[0].clone(at::MemoryFormat::Contiguous);
    kernels::rotate_(grad, {}, saved[0], saved[1], /*back=*/true);
    return {grad, {}, {}};
  }
};

}  // namespace

at::Tensor rotate_inside(const at::Tensor& projected, const RotaryAngles& angles,
                         const HeadPlaces& a, const HeadPlaces& b) {
  if (!kernels::usable({projected, angles.cos, angles.sin})) return {};
  at::Tensor turned = RotateInside::apply(projected, angles.cos, angles.sin, a, b);
  keep_step(projected);
  return turned;
}

RotaryAngles rotary_angles(const RotarySpec& spec, const at::Tensor& positions,
                           at::ScalarType dtype) {
  const at::Tensor angles =
      at::outer(positions.to(at::kFloat), to_device(frequencies(spec), positions.device()));
  const at::Tensor both = at::cat({angles, angles}, 1).unsqueeze(1);  // [N, 1, dim]
  return {both.cos().to(dtype), both.sin().to(dtype)};
}

at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles) {
  if (x.size(0) > 0 && kernels::usable({x, angles.cos, angles.sin}))
    return Rotate::apply(x, angles.cos, angles.sin);
  const std::int64_t dim = angles.cos.size(2), half = dim / 2;
  const at::Tensor turned = x.narrow(2, 0, dim);
  const at::Tensor crossed = at::cat({-turned.narrow(2, half, half), turned.narrow(2, 0, half)}, 2);
  const at::Tensor result = turned * angles.cos + crossed * angles.sin;
  return dim == x.size(2) ? result : at::cat({result, x.narrow(2, dim, x.size(2) - dim)}, 2);
}

}  // namespace floe::nn
