// Attention over packed sequences: self-attention, causal or in both directions, with and without a
// key-value cache, and attention between spans of tokens without padding.
//
// Note [Packed attention]
// floe's own kernels (kernels/attention.h) take heads wherever they lie in the rows of a
// projection and write the gradients into rows of the same kind, so that nothing is taken apart
// or put together around them; they know alibi. Where they do not apply, torch's flash attention
// may, without alibi.
//
// Note [The last tile of cuDNN's attention]
// On Hopper, the gradients of cuDNN's attention are computed in tiles of 128 keys, of which it
// takes those for full that hold a multiple of 64: with 64, 192 or 320 keys the places behind the
// last one count as scores of zero, and a query whose own scores are all below -88 gets a gradient
// that is not finite; so do the keys of a single query (pytorch/pytorch#196678,
// NVIDIA/cudnn-frontend#1072). Its forward is right. A Perceiver resampler has 256 + 64 keys, and
// nothing in a loss keeps scores from falling together, so such a step comes some day.
// `torch_attention` leaves cuDNN out there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "floe/nn/rotary.h"
#include "floe/nn/segments.h"

namespace floe::nn {

struct AttentionRule;

// Keys and values of the tokens that a model has seen, for generation. A forward writes behind what
// is there; `advance` then makes it part of the past.
class KvCache {
 public:
  KvCache(std::int64_t sequences, std::int64_t capacity)
      : capacity_(capacity), past_(static_cast<std::size_t>(sequences), 0) {}

  std::int64_t sequences() const { return static_cast<std::int64_t>(past_.size()); }
  std::int64_t capacity() const { return capacity_; }
  // How many tokens of each sequence are in the cache.
  const std::vector<std::int64_t>& past() const { return past_; }

  // Memory for one layer, [sequences, capacity, heads, dim], made when first asked for.
  struct Layer {
    at::Tensor keys, values;
  };
  Layer& layer(std::size_t index, const at::Tensor& like);

  // What all layers of one forward do alike, worked out by the first of them.
  struct Pass {
    at::Tensor places;  // [N] in [sequences * capacity], where each token's key and value go
    bool first = true;  // nothing is in the cache yet: tokens look at each other only
    std::vector<at::Tensor> masks;      // of each bucket
    std::vector<at::Tensor> sequences;  // of each bucket; undefined: all, in order
    std::vector<std::int64_t> longest;  // of each bucket: past and new tokens
  };
  const Pass& pass(const Segments& segments, const AttentionRule& rule, at::TensorOptions options,
                   std::int64_t head_dim);

  // Room for at least so many tokens of a sequence; grows by doubling, so that growing costs
  // little.
  void reserve(std::int64_t capacity);
  // The tokens of the forward that just ended belong to the past.
  void advance(const std::vector<std::int64_t>& lengths);
  // Sequence i goes on from what sequence from[i] has seen: beams change places, or split;
  // sequences that are not named are gone.
  void reorder(const std::vector<std::int64_t>& from);

 private:
  std::int64_t capacity_;
  std::vector<std::int64_t> past_;
  std::vector<Layer> layers_;
  std::optional<Pass> pass_;  // until it ends
};

// Where queries, keys and values are: [N, width], [K, width] twice. Undefined keys lie in the rows
// of the queries, undefined values in those of the keys.
struct PackedHeads {
  at::Tensor q, k, v;
  HeadPlaces q_heads, k_heads, v_heads;  // together they are all that the rows hold
  std::int64_t dim = 0;                  // of a head
};
// Of a cross-attention: q [..., heads * dim]; in the rows of kv [..., 2 * heads * dim] the keys of
// all heads, and behind them the values.
PackedHeads cross_attention_heads(const at::Tensor& q, const at::Tensor& kv, std::int64_t heads,
                                  std::int64_t dim);

struct AttentionRule {
  double scale = 1;  // of query times key
  // A token sees itself and what is before it; false: all of its sequence, without a window, slopes
  // or a cache.
  bool causal = true;
  std::int64_t window = 0;  // a token sees this many, itself included; 0: all before it
  at::Tensor slopes;        // [H] fp32, alibi: minus slope times distance is added; undefined: none
  double dropout = 0;       // of attention weights
};

// What is added to the scores of each bucket, in this dtype; undefined where the rule alone is all.
// The same for all layers of a model: make it once per batch, unless attention_packs.
std::vector<at::Tensor> attention_masks(const Segments& segments, const AttentionRule& rule,
                                        at::TensorOptions options);

// Whether attention between heads of `dim` features will take the sequences without padding, where
// no masks are needed.
bool attention_packs(const Segments& segments, const AttentionRule& rule, at::TensorOptions options,
                     std::int64_t dim);

// q [N, H, D], k and v [N, H', D] with H a multiple of H' → [N, H * D]. Without masks
// they are made.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const Segments& segments, const std::vector<at::Tensor>& masks,
                     const AttentionRule& rule);
// The same of heads inside of rows. Undefined when no kernel takes them; then take them apart.
at::Tensor attention(const PackedHeads& heads, const Segments& segments, const AttentionRule& rule);

// The same for the next tokens of sequences whose earlier ones are in the cache: k and v
// are written to `layer` of the cache, and each token looks at all that is there up to
// itself. Without gradients.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const Segments& segments, KvCache& cache, std::size_t layer,
                     const AttentionRule& rule);

// Torch's own attention: q [B, H, T, D], k and v [B, H', K, D] → [B, H, T, D], see Note [The last
// tile of cuDNN's attention].
struct TorchAttentionRule {
  std::optional<double> scale;  // of query times key; none: 1 / sqrt(D)
  bool causal = false;
  double dropout = 0;
};
at::Tensor torch_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& mask, const TorchAttentionRule& rule);
// Whether so many queries and keys fill the tiles of cuDNN's gradients, or end where it sees it.
bool cudnn_sees_the_end(std::int64_t queries, std::int64_t keys);

// Alibi's slope of each head, as published: powers of 2^(-bias_max / heads), and for a number of
// heads that is no power of two every second one of the next power first.
at::Tensor alibi_slopes(std::int64_t heads, double bias_max);

// ---- between spans without padding, on the GPU (see Note [Packed attention]) ----

// Spans that lie one after the other.
struct Spans {
  at::Tensor offsets;  // [S+1] int32 on the device
  std::int64_t longest = 0;
};

struct PackedRule {
  // A query sees the keys up to its own place in the span, else all of its span.
  bool causal = false;
  double scale = 1;
  at::Tensor slopes;  // [H] fp32 on the device, see AttentionRule; undefined: none
};

// The queries of span s look at the keys of span s → [N, H * D]. A span without keys gives zeros;
// one without queries is not allowed to have keys. Undefined when no kernel applies.
// With heads inside of rows only floe's kernels do: else take them apart and call the second.
at::Tensor packed_attention(const PackedHeads& heads, const Spans& queries, const Spans& keys,
                            const PackedRule& rule);
// q [N, H, D], k and v [K, H', D] with H a multiple of H'.
at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Spans& queries, const Spans& keys, const PackedRule& rule);
// Whether they will apply to heads of `dim` features in this dtype and on this device, as far as
// that can be told before the tensors are there.
bool packs(at::TensorOptions options, std::int64_t dim, const PackedRule& rule);

}  // namespace floe::nn
