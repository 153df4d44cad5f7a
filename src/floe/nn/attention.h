// Causal self-attention over packed sequences, with and without a key-value cache.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "floe/nn/kv_cache.h"
#include "floe/nn/packed_attention.h"
#include "floe/nn/segments.h"

namespace floe::nn {

struct AttentionRule {
  double scale = 1;         // of query times key
  std::int64_t window = 0;  // a token sees this many, itself included; 0: all before it
  at::Tensor slopes;        // [H] fp32, alibi: minus slope times distance is added; undefined: none
  double dropout = 0;       // of attention weights
};

// What is added to the scores of each bucket, in this dtype; undefined where the causal rule is all.
// The same for all layers of a model: make it once per batch, unless attention_packs.
std::vector<at::Tensor> attention_masks(const Segments& segments, const AttentionRule& rule,
                                        at::TensorOptions options);

// Whether attention between heads of `dim` features will take the sequences without padding, where no
// masks are needed.
bool attention_packs(const Segments& segments, const AttentionRule& rule, at::TensorOptions options,
                     std::int64_t dim);

// q [N, H, D], k and v [N, H', D] with H a multiple of H' → [N, H * D]. Without masks they are made.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const Segments& segments, const std::vector<at::Tensor>& masks,
                     const AttentionRule& rule);
// The same of heads inside of rows. Undefined when no kernel takes them; then take them apart.
at::Tensor attention(const PackedHeads& heads, const Segments& segments, const AttentionRule& rule);

// The same for the next tokens of sequences whose earlier ones are in the cache: k and v are written
// to `layer` of the cache, and each token looks at all that is there up to itself. Without gradients.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const Segments& segments, KvCache& cache, std::size_t layer,
                     const AttentionRule& rule);

// Alibi's slope of each head, as published: powers of 2^(-bias_max / heads), and for a number of
// heads that is no power of two every second one of the next power first.
at::Tensor alibi_slopes(std::int64_t heads, double bias_max);

}  // namespace floe::nn
