// Causal self-attention over packed sequences, with and without a key-value cache.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "floe/nn/kv_cache.h"
#include "floe/nn/segments.h"

namespace floe::nn {

struct AttentionRule {
  double scale = 1;         // of query times key
  std::int64_t window = 0;  // a token sees this many, itself included; 0: all before it
  at::Tensor slopes;        // [H] alibi: minus slope times distance is added; undefined: none
  double dropout = 0;       // of attention weights
};

// What is added to the scores of each bucket, in this dtype; undefined where the causal rule is all.
// The same for all layers of a model: make it once per batch.
std::vector<at::Tensor> attention_masks(const Segments& segments, const AttentionRule& rule,
                                        at::TensorOptions options);

// q [N, H, D], k and v [N, H', D] with H a multiple of H' → [N, H * D].
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const Segments& segments, const std::vector<at::Tensor>& masks,
                     const AttentionRule& rule);

// The same for the next tokens of sequences whose earlier ones are in the cache: k and v are written
// to `layer` of the cache, and each token looks at all that is there up to itself. Without gradients.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const Segments& segments, KvCache& cache, std::size_t layer,
                     const AttentionRule& rule);

// Spans that lie one after the other.
struct Spans {
  at::Tensor offsets;  // [S+1] int32 on the device
  std::int64_t longest = 0;
};
// On CUDA, in bf16 or fp16: the queries of span s look at the keys of span s, all of them or, when
// causal, those up to their own place. A span without keys gives zeros; one without queries is not
// allowed to have keys. q [N, H, D], k and v [K, H', D]; tokens and heads may have any stride.
at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Spans& queries, const Spans& keys, bool causal, double scale);

// Alibi's slope of each head, as published: powers of 2^(-bias_max / heads), and for a number of
// heads that is no power of two every second one of the next power first.
at::Tensor alibi_slopes(std::int64_t heads, double bias_max);

}  // namespace floe::nn
