// floe's own attention on tensors, without autograd (nn/attention.h has that).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace floe::kernels {

// q [N, H, D], k and v [K, H', D] with H a multiple of H': a head's features lie next to each
// other, tokens and heads may have any stride of whole 16 bytes.
struct Qkv {
  at::Tensor q, k, v;
};
struct AttentionRule {
  // Spans that lie one after the other: [S+1] int32 on the device where they begin, and the
  // longest. The queries of span s look at the keys of span s.
  at::Tensor query_offsets, key_offsets;
  std::int64_t longest_query = 0, longest_key = 0;
  bool causal = false;  // at those up to their own place in the span, else at all
  double scale = 1;
  at::Tensor
      slopes;  // [H] fp32 on the device: minus slope times distance is added; undefined: none
};

// Whether there is a kernel for heads of `dim` features, in this build and on this device.
bool attention_has(at::ScalarType dtype, std::int64_t dim, at::Device device);
// And it takes these.
bool attention_fits(const Qkv& qkv, std::int64_t spans);

struct Attended {
  at::Tensor mixed;      // [N, H, D], contiguous; zeros where a span has no keys
  at::Tensor logsumexp;  // [H, N] fp32, for the backward
};
Attended attention(const Qkv& qkv, const AttentionRule& rule);

// Writes the gradients to `grads`, shaped like q, k and v, with strides of their own. `grad` and
// `mixed` [N, H, D]. Sums have one order: the same inputs give the same bits.
void attention_backward(const Qkv& qkv, const AttentionRule& rule, const Attended& attended,
                        const at::Tensor& grad, const Qkv& grads);

}  // namespace floe::kernels
