// Linear layers with low-rank adapters beside them, several of one input at once.
//
// Note [Adapted products]
//   y = x Wᵀ + b + s (x Aᵀ) Bᵀ      W frozen, A [rank, in] and B [out, rank] train
//
// The adapter costs little arithmetic, but as operators of its own it reads and writes y and the
// gradient of x several times over. As one node it does not: its part is written first and the base
// product is added to it inside of the product's kernel, forward as backward (with codes, whose
// kernel cannot add, it is added last), and layers that read the same x share x Aᵀ, its gradient
// and the sum of theirs for x. Kept for backward are x, once, and x Aᵀ, which is as narrow as the
// ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace floe::nn {

struct AdaptedWeight {
  at::Tensor weight, bias;  // [out, in], of values or codes, without a gradient; bias may be
                            // undefined
  at::Tensor a, b;          // undefined: no adapter
  double scale = 1;
};

// y of each. All tensors have x's dtype, codes aside; at least one has an adapter.
std::vector<at::Tensor> adapted_linears(const at::Tensor& x,
                                        const std::vector<AdaptedWeight>& weights);
// Likewise of silu(gate) · up, which is not kept for backward.
at::Tensor adapted_gated_silu_linear(const at::Tensor& gate, const at::Tensor& up,
                                     const AdaptedWeight& weight);

}  // namespace floe::nn
