// floe's own CUDA kernels on tensors, without autograd (nn/fused.h has that). Everything here asks
// for tensors that `usable` accepts; sums and products are computed in fp32 and rounded once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <utility>

namespace floe::kernels {

// What every function here does in a build without CUDA, where nothing says that it applies.
[[noreturn]] void missing();

// Whether kernels take these tensors: this build has them, and all defined ones are contiguous,
// aligned, on one CUDA device, and of one dtype among fp32, fp16 and bf16. Not under autocast,
// which would have chosen dtypes on the way.
bool usable(std::initializer_list<at::Tensor> tensors);
// With false, `usable` says no until it is called with true: everything then runs as plain
// operators, for comparisons of the two.
void allow(bool on);
bool are_allowed();

// Whether it is a GPU of that kind (compute capability 9).
bool is_hopper(const at::Device& device);

// x · sigmoid(1.702 x)
at::Tensor quick_gelu(const at::Tensor& x);

// grad · gelu'(u)
at::Tensor gelu_backward(const at::Tensor& grad, const at::Tensor& u);

// silu(gate) · up, and from the gradient of that those of gate and up.
at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up);
std::pair<at::Tensor, at::Tensor> gated_silu_backward(const at::Tensor& grad,
                                                      const at::Tensor& gate, const at::Tensor& up);

// tanh(gate) · gelu(u); gate [1], undefined counts as 1.
at::Tensor gated_gelu(const at::Tensor& u, const at::Tensor& gate);
struct GatedGeluGrad {
  at::Tensor out;     // the forward's result again
  at::Tensor factor;  // [1] fp32: ⟨grad, gelu(u)⟩, the gradient of tanh(gate)
};
// `grad` becomes tanh(gate) · grad · gelu'(u), the gradient for u.
GatedGeluGrad gated_gelu_backward_(const at::Tensor& grad, const at::Tensor& u,
                                   const at::Tensor& gate);

// Note [Normalised rows in 8 bits]
// Backward through a norm needs its input, or the normalised rows: dx = rstd · (g - mean(g) - n ·
// mean(g · n)) of normalised rows n. Those lie within ±√dim and are near 1 in the mean, so that
// e4m3 takes them as they are, without a scale, and they stand in it for an input of twice or four
// times the bytes. n has a part only in what is taken off g, which is |cos(g, n)| of it: the error
// is 2⁻⁴ of that at most, where products in 8 bits have brought 4% of g itself. Only norms whose
// weights are frozen and that feed such products are kept so.

// Rows whose length the norm's kernels take.
bool norm_fits(const at::Tensor& x);
struct Normed {
  at::Tensor sum;  // x + added (+ sum_bias); undefined without `added`
  at::Tensor out;  // norm(x + added) · weight + bias
  at::Tensor mean,
      rstd;  // [rows, 1] fp32; undefined unless asked for, the mean also when not centred
  at::Tensor codes, code_scales;  // [rows, dim] e4m3, [rows] fp32: `out` as to_coded_rows has it
  at::Tensor kept;                // [rows, dim] e4m3: see Note [Normalised rows in 8 bits]
};
struct NormOptions {
  double eps = 1e-5;
  bool statistics = false;
  bool centred = true;  // false: RMS norm, which leaves the mean where it is
  bool codes = false;   // of `out` are wanted too
  bool kept = false;    // is wanted too
};
// x [..., dim]; `added`, `bias` and `sum_bias` may be undefined.
Normed layer_norm(const at::Tensor& x, const at::Tensor& added, const at::Tensor& weight,
                  const at::Tensor& bias, const at::Tensor& sum_bias, const NormOptions& options);
struct NormGrads {
  at::Tensor input;         // plus `added` where that is defined
  at::Tensor weight, bias;  // [dim]
};
// Either part only where it is wanted. An undefined mean: not centred. `x` may be Normed::kept
// instead, where weights are not wanted.
NormGrads layer_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& mean,
                              const at::Tensor& rstd, const at::Tensor& weight,
                              const at::Tensor& added, bool want_input, bool want_weights);

// The strips of rows whose sums the gradients of a norm's weights are made of: [strips, 2, dim] in
// fp32 is what that needs beside its results.
std::int64_t norm_strips(const at::Tensor& x);

// Turns x [N, H, D] and, unless it is undefined, `also` [N, H', D] in place as nn::rotate does, or
// back. Features lie next to each other, tokens and heads may have any stride. cos and sin [N, 1,
// dim], contiguous, of x's dtype.
void rotate_(const at::Tensor& x, const at::Tensor& also, const at::Tensor& cos,
             const at::Tensor& sin, bool back);

// Cross entropy of each row of logits [L, V], as nn::cross_entropy has it: `losses` [L] and
// `weighted` [L] in fp32 are written, and with_gradient the logits become the gradient of the
// sum of `weighted`.
struct RowLosses {
  at::Tensor losses, weighted;
};
void cross_entropy_(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                    double scale, double z_loss, bool with_gradient, const RowLosses& out);

}  // namespace floe::kernels
