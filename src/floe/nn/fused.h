// Steps of a layer that belong together, each with one gradient that keeps little and moves little.
//
// Note [Fused steps]
// Where floe's kernels apply (kernels::usable), a step is one autograd node: what can be had again
// cheaply from its inputs (a norm, a GELU, a gate's product) is computed again in backward instead
// of being kept, and sums into a residual stream happen inside of the kernel that has the numbers
// anyway. Everywhere else a step is the plain operators that its comment says, in that order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace floe::nn {

struct NormWeights {
  at::Tensor weight, bias;  // [dim]; bias may be undefined
  double eps = 1e-5;
  bool centred = true;  // layer_norm; false: rms_norm, without a bias
};

// x · sigmoid(1.702 x)
at::Tensor quick_gelu(const at::Tensor& x);
// gelu, not its approximation.
at::Tensor gelu(const at::Tensor& x);

// silu(gate) · up, and its gradients for both from that of the result.
at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up);
std::pair<at::Tensor, at::Tensor> gated_silu_backward(const at::Tensor& grad,
                                                      const at::Tensor& gate, const at::Tensor& up);

// x + added (undefined: x itself), and the norm of that: what goes on along the residual stream and
// what goes into a branch of it. Use the first instead of x from here on.
std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& added,
                                           const NormWeights& norm);

// The same of a norm whose weights are frozen and whose result goes into products of codes
// (linear.h): also its codes, for a SharedRows, and in backward rows in 8 bits instead of the sum
// (kernels, Note [Normalised rows in 8 bits]). Codes are undefined where kernels do not apply.
struct CodedNorm {
  at::Tensor stream, normed;
  at::Tensor codes, code_scales;
};
CodedNorm add_coded_norm(const at::Tensor& x, const at::Tensor& added, const NormWeights& norm);

// x, and linear(norm(x), weight).
std::pair<at::Tensor, at::Tensor> norm_linear(const at::Tensor& x, const NormWeights& norm,
                                              const at::Tensor& weight);

// linear(inner, weight) · tanh(gate) + x; an undefined gate counts as open.
at::Tensor add_gated_linear(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& weight,
                            const at::Tensor& gate);
// linear(gelu(u), weight) · tanh(gate) + x
at::Tensor add_gated_gelu_linear(const at::Tensor& x, const at::Tensor& u, const at::Tensor& weight,
                                 const at::Tensor& gate);

}  // namespace floe::nn
