// Attention between spans of tokens without padding, on the GPU.
//
// Note [Packed attention]
// floe's own kernels (kernels/attention.h) take heads wherever they lie in the rows of a projection and
// write the gradients into rows of the same kind, so that nothing is taken apart or put together around
// them; they know alibi. Where they do not apply, torch's flash attention may, without alibi.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "floe/nn/rotary.h"

namespace floe::nn {

// Spans that lie one after the other.
struct Spans {
  at::Tensor offsets;  // [S+1] int32 on the device
  std::int64_t longest = 0;
};

// Where queries, keys and values are: [N, width], [K, width] twice. Undefined keys lie in the rows of the
// queries, undefined values in those of the keys.
struct PackedHeads {
  at::Tensor q, k, v;
  HeadPlaces q_heads, k_heads, v_heads;  // together they are all that the rows hold
  std::int64_t dim = 0;                  // of a head
};

struct PackedRule {
  bool causal =
      false;  // a query sees the keys up to its own place in the span, else all of its span
  double scale = 1;
  at::Tensor slopes;  // [H] fp32 on the device, see AttentionRule; undefined: none
};

// The queries of span s look at the keys of span s → [N, H * D]. A span without keys gives zeros; one
// without queries is not allowed to have keys. Undefined when no kernel applies.
// With heads inside of rows only floe's kernels do: else take them apart and call the second.
at::Tensor packed_attention(const PackedHeads& heads, const Spans& queries, const Spans& keys,
                            const PackedRule& rule);
// q [N, H, D], k and v [K, H', D] with H a multiple of H'.
at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Spans& queries, const Spans& keys, const PackedRule& rule);
// Whether they will apply to heads of `dim` features in this dtype and on this device, as far as that can
// be told before the tensors are there.
bool packs(at::TensorOptions options, std::int64_t dim, const PackedRule& rule);

}  // namespace floe::nn
