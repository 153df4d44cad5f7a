// Attention without padding, with its gradients, against each span on its own in fp64.
#include <cmath>
#include <numeric>

#include "floe/core/str.h"
#include "floe/kernels/attention.h"
#include "floe/nn/attention.h"
#include "tests/kernels/gradients.h"

namespace floe::attention_kernels_test {
namespace {

using test::compare;
using test::random_on_gpu;
using test::Tensors;

// What fp16 and bf16 leave of a sum of rounded weights.
double tolerance(at::ScalarType dtype) { return dtype == at::kBFloat16 ? 2e-2 : 3e-3; }

struct Lengths {
  std::vector<int> of;

  int total() const { return std::accumulate(of.begin(), of.end(), 0); }
  nn::Spans spans() const {
    std::vector<int> offsets{0};
    for (const int length : of) offsets.push_back(offsets.back() + length);
    return {at::tensor(offsets, at::kInt).to(at::kCUDA), *std::max_element(of.begin(), of.end())};
  }
};

// q [N, H, D], k and v [K, H', D] → [N, H * D]
at::Tensor spans_apart(at::Tensor q, at::Tensor k, at::Tensor v, const Lengths& queries,
                       const Lengths& keys, const nn::PackedRule& rule) {
  const std::int64_t group = q.size(1) / k.size(1);
  k = k.repeat_interleave(group, 1), v = v.repeat_interleave(group, 1);
  const auto heads_first = [](const at::Tensor& x) { return x.transpose(0, 1); };
  Tensors out;
  std::int64_t first = 0, first_key = 0;
  for (std::size_t s = 0; s < queries.of.size(); ++s) {
    const std::int64_t count = queries.of[s], seen = keys.of[s];
    const at::Tensor query = q.narrow(0, first, count);
    at::Tensor mixed = at::zeros_like(query);
    if (seen > 0 && count > 0) {
      at::Tensor scores =
          heads_first(query).matmul(heads_first(k.narrow(0, first_key, seen)).transpose(1, 2)) *
          rule.scale;
      const auto places = scores.options();
      const at::Tensor distance = at::arange(count, places).unsqueeze(1) - at::arange(seen, places);
      if (rule.slopes.defined())
        scores = scores - rule.slopes.to(at::kDouble).view({-1, 1, 1}) * distance;
      if (rule.causal) scores = scores.masked_fill(distance.lt(0), -INFINITY);
      mixed = heads_first(scores.softmax(-1).matmul(heads_first(v.narrow(0, first_key, seen))));
    }
    out.push_back(mixed.reshape({count, q.size(1) * q.size(2)}));
    first += count, first_key += seen;
  }
  return at::cat(out);
}

at::Tensor slopes_for(std::int64_t heads, bool alibi) {
  return alibi ? nn::alibi_slopes(heads, 8).to(at::kCUDA) : at::Tensor();
}

const Lengths kLengths{{1, 32, 7, 200, 64, 0, 65, 129}};

// Separate tensors: heads of every size there is a kernel for and one there is none for, numbers of
// heads that are no power of two, keys that several heads share.
TEST(PackedAttention, CausalWithAndWithoutAlibi) {
  struct Heads {
    std::int64_t queries, keys, dim;
  };
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const bool alibi : {false, true})
      for (const auto& [heads, shared, dim] :
           {Heads{4, 4, 64}, Heads{3, 3, 80}, Heads{6, 2, 96}, Heads{5, 5, 128}, Heads{8, 2, 128},
            Heads{2, 2, 32}}) {
        if (alibi && dim == 32) continue;  // is padded
        SCOPED_TRACE(str("dim ", dim, ", heads ", heads, ", alibi ", alibi));
        const std::int64_t tokens = kLengths.total();
        const nn::PackedRule rule{true, 1 / std::sqrt(static_cast<double>(dim)),
                                  slopes_for(heads, alibi)};
        compare(
            {random_on_gpu({tokens, heads, dim}, at::kFloat),
             random_on_gpu({tokens, shared, dim}, at::kFloat),
             random_on_gpu({tokens, shared, dim}, at::kFloat)},
            dtype,
            [&](const Tensors& in) -> Tensors {
              const nn::Spans spans = kLengths.spans();
              return {nn::packed_attention(in[0], in[1], in[2], spans, spans, rule)};
            },
            [&](const Tensors& in) -> Tensors {
              return {spans_apart(in[0], in[1], in[2], kLengths, kLengths, rule)};
            },
            tolerance(dtype));
      }
}

// Sequences of one length, for which there is another kernel (cudnn_attention).
TEST(PackedAttention, LongOnesOfOneLength) {
  const Lengths lengths{{768, 768, 768}};
  for (const std::int64_t shared : {4, 2})
    for (const bool causal : {true, false}) {
      SCOPED_TRACE(str("shared ", shared, ", causal ", causal));
      const nn::PackedRule rule{causal, 0.125, {}};
      const std::int64_t tokens = lengths.total(), heads = 4, dim = 64;
      compare(
          {random_on_gpu({tokens, heads, dim}, at::kFloat),
           random_on_gpu({tokens, shared, dim}, at::kFloat),
           random_on_gpu({tokens, shared, dim}, at::kFloat)},
          at::kBFloat16,
          [&](const Tensors& in) -> Tensors {
            const nn::Spans spans = lengths.spans();
            return {nn::packed_attention(in[0], in[1], in[2], spans, spans, rule)};
          },
          [&](const Tensors& in) -> Tensors {
            return {spans_apart(in[0], in[1], in[2], lengths, lengths, rule)};
          },
          tolerance(at::kBFloat16));
    }
}

// Where exp of minus the sum of a query's weights is more than fp32 holds: what lies behind the
// last key or query of a tile must not come in.
TEST(PackedAttention, ScoresFarBelowZero) {
  const std::int64_t heads = 3, dim = 64;
  const Lengths queries{{64, 1, 64, 100, 128}}, keys{{320, 128, 300, 64, 192}};
  for (const bool causal : {false, true}) {
    SCOPED_TRACE(str("causal ", causal));
    const Lengths& own = causal ? keys : queries;
    const nn::PackedRule rule{causal, 0.125, {}};
    // One feature gives all scores the same summand, -120; its gradient, a sum that is zero, is not
    // compared.
    const auto with = [&](const at::Tensor& x, double common) {
      return at::cat({at::full_like(x.narrow(2, 0, 1), common), x}, 2);
    };
    const auto attend = [&](const Tensors& in, const auto& attention) -> Tensors {
      return {attention(with(in[0], 1), with(in[1], -120 * 8), with(in[2], 0))};
    };
    compare(
        {random_on_gpu({own.total(), heads, dim - 1}, at::kFloat) * 0.1,
         random_on_gpu({keys.total(), heads, dim - 1}, at::kFloat) * 0.1,
         random_on_gpu({keys.total(), heads, dim - 1}, at::kFloat)},
        at::kBFloat16,
        [&](const Tensors& in) -> Tensors {
          return attend(in, [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
            return nn::packed_attention(q, k, v, own.spans(), keys.spans(), rule);
          });
        },
        [&](const Tensors& in) -> Tensors {
          return attend(in, [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
            return spans_apart(q, k, v, own, keys, rule);
          });
        },
        tolerance(at::kBFloat16));
  }
}

// Heads where a fused projection has them, one after the other or head by head; one gradient.
TEST(PackedAttention, InsideOfOneProjection) {
  const std::int64_t tokens = kLengths.total(), heads = 6, dim = 64;
  for (const bool per_head : {false, true})
    for (const std::int64_t shared : {6, 3}) {
      if (per_head && shared != heads) continue;
      SCOPED_TRACE(str("per head ", per_head, ", shared ", shared));
      const std::int64_t width = (heads + 2 * shared) * dim, stride = per_head ? 3 * dim : dim;
      const nn::PackedRule rule{true, 0.125, slopes_for(heads, true)};
      const nn::PackedHeads places{
          .q_heads = {0, heads, stride},
          .k_heads = {per_head ? dim : heads * dim, shared, stride},
          .v_heads = {per_head ? 2 * dim : (heads + shared) * dim, shared, stride},
          .dim = dim};
      compare(
          {random_on_gpu({tokens, width}, at::kFloat)}, at::kBFloat16,
          [&](const Tensors& in) -> Tensors {
            nn::PackedHeads inside = places;
            inside.q = in[0];
            const nn::Spans spans = kLengths.spans();
            return {nn::packed_attention(inside, spans, spans, rule)};
          },
          [&](const Tensors& in) -> Tensors {
            const auto part = [&](const nn::HeadPlaces& at) {
              return per_head ? in[0].view({tokens, heads, 3 * dim}).narrow(2, at.offset, dim)
                              : in[0]
                                    .narrow(1, at.offset, at.heads * dim)
                                    .reshape({tokens, at.heads, dim});
            };
            return {spans_apart(part(places.q_heads), part(places.k_heads), part(places.v_heads),
                                kLengths, kLengths, rule)};
          },
          tolerance(at::kBFloat16));
    }
}

// Looking at images: keys and values in one tensor, spans without keys, more keys than queries.
TEST(PackedAttention, SpansWithoutKeysGiveZeros) {
  const Lengths queries{{5, 40, 3, 129, 1, 20, 64}}, keys{{0, 64, 64, 70, 0, 192, 1}};
  const std::int64_t heads = 8;
  for (const std::int64_t dim : {64, 48}) {  // with floe's kernel, with torch's
    SCOPED_TRACE(str("dim ", dim));
    const std::int64_t inner = heads * dim;
    const nn::PackedRule rule{.scale = 0.125};
    compare(
        {random_on_gpu({queries.total(), inner}, at::kFloat),
         random_on_gpu({keys.total(), 2 * inner}, at::kFloat)},
        at::kBFloat16,
        [&](const Tensors& in) -> Tensors {
          const nn::HeadPlaces first{0, heads, dim}, second{inner, heads, dim};
          const at::Tensor mixed = nn::packed_attention({.q = in[0],
                                                         .k = in[1],
                                                         .q_heads = first,
                                                         .k_heads = first,
                                                         .v_heads = second,
                                                         .dim = dim},
                                                        queries.spans(), keys.spans(), rule);
          EXPECT_EQ(mixed.defined(), dim == 64);
          if (mixed.defined()) return {mixed};
          const auto kv = in[1].view({-1, 2, heads, dim}).unbind(1);
          return {nn::packed_attention(in[0].view({-1, heads, dim}), kv[0], kv[1], queries.spans(),
                                       keys.spans(), rule)};
        },
        [&](const Tensors& in) -> Tensors {
          const auto kv = in[1].view({-1, 2, heads, dim}).unbind(1);
          return {spans_apart(in[0].view({-1, heads, dim}), kv[0], kv[1], queries, keys, rule)};
        },
        tolerance(at::kBFloat16));
  }
}

// Sums have one order.
TEST(PackedAttention, RepeatsToTheBit) {
  const std::int64_t tokens = kLengths.total(), heads = 3, dim = 128;
  const auto rows = [&] { return random_on_gpu({tokens, heads, dim}, at::kBFloat16); };
  const kernels::Qkv qkv{rows(), rows(), rows()};
  const at::Tensor grad = rows();
  const nn::Spans spans = kLengths.spans();
  const kernels::AttentionRule rule{spans.offsets,          spans.offsets, spans.longest,
                                    spans.longest,          true,          0.1,
                                    slopes_for(heads, true)};
  Tensors first;
  for (int i = 0; i < 3; ++i) {
    const auto attended = kernels::attention(qkv, rule);
    const kernels::Qkv grads{at::empty_like(qkv.q), at::empty_like(qkv.k), at::empty_like(qkv.v)};
    kernels::attention_backward(qkv, rule, attended, grad, grads);
    const Tensors all{attended.mixed, attended.logsumexp, grads.q, grads.k, grads.v};
    if (first.empty()) first = all;
    for (std::size_t t = 0; t < all.size(); ++t) EXPECT_TRUE(at::equal(all[t], first[t])) << t;
  }
}

// A model's own way to it: with alibi packed and padded are the same attention, and windows that
// hide nothing do not keep it from being packed.
TEST(PackedAttention, EqualsThePaddedOne) {
  const std::int64_t tokens = kLengths.total(), heads = 12, dim = 64;
  std::vector<std::int64_t> offsets{0};
  for (const int length : kLengths.of) offsets.push_back(offsets.back() + length);
  const nn::Segments segments(at::tensor(offsets, at::kLong), {}, at::kCUDA);
  nn::AttentionRule rule{.scale = 0.125, .window = 4096, .slopes = nn::alibi_slopes(heads, 8)};
  const auto options = at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);
  ASSERT_TRUE(nn::attention_packs(segments, rule, options, dim));
  const auto rows = [&] { return random_on_gpu({tokens, heads, dim}, at::kBFloat16); };
  const at::Tensor q = rows(), k = rows(), v = rows();
  const at::Tensor packed = nn::attention(q, k, v, segments, {}, rule);
  const auto wide = [](const at::Tensor& x) { return x.to(at::kFloat); };
  const at::Tensor padded = nn::attention(wide(q), wide(k), wide(v), segments, {}, rule);
  test::expect_close(packed, padded, tolerance(at::kBFloat16), "packed");
}

}  // namespace
}  // namespace floe::attention_kernels_test
