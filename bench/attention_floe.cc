// Attention of one layer by the ways there are to it, on the GPU: ./bench_attention prints
// milliseconds per call, forward and with backward, for the lengths that OpenFlamingo's steps have.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "floe/kernels/kernels.h"
#include "floe/nn/attention.h"

namespace {

using namespace floe;

using Lengths = std::vector<std::int64_t>;
// From the rows of a projection (of two: queries, and keys and values) to what attention
// makes of them.
using Way = std::function<at::Tensor(const std::vector<at::Tensor>& rows)>;

constexpr int kWarmup = 3, kTimes = 20;

const auto kHalves = at::TensorOptions().device(at::kCUDA, 0).dtype(at::kBFloat16);

double milliseconds(const std::function<void()>& body) {
  for (int i = 0; i < kWarmup; ++i) body();
  c10::cuda::device_synchronize();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kTimes; ++i) body();
  c10::cuda::device_synchronize();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
             .count() /
         kTimes;
}

void report(const std::string& shape, const std::string& name,
            const std::vector<at::IntArrayRef>& sizes, const Way& way, bool backward = true) {
  std::vector<at::Tensor> rows;
  for (const auto size : sizes) rows.push_back(at::randn(size, kHalves).requires_grad_(backward));
  at::Tensor grad;
  double forward_ms = 0, both_ms = 0;
  {
    const at::AutoGradMode grad_off(false);
    const at::Tensor mixed = way(rows);
    if (!mixed.defined()) return;  // not a way for these lengths
    grad = at::randn(mixed.sizes(), kHalves);
    forward_ms = milliseconds([&] { way(rows); });
  }
  if (backward)
    both_ms = milliseconds([&] {
      way(rows).backward(grad);
      for (at::Tensor& r : rows) r.mutable_grad().reset();
    });
  std::printf("%-24s %-28s %8.3f ms forward", shape.c_str(), name.c_str(), forward_ms);
  if (backward) std::printf(" %8.3f ms with backward", both_ms);
  std::printf("\n");
  std::fflush(stdout);
}

Lengths repeated(std::int64_t count, std::int64_t length) {
  return Lengths(static_cast<std::size_t>(count), length);
}
Lengths joined(Lengths a, const Lengths& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
Lengths natural() {
  std::mt19937 random(7);
  const auto some = [&](std::int64_t count, int low, int high) {
    Lengths lengths;
    for (std::int64_t i = 0; i < count; ++i)
      lengths.push_back(std::uniform_int_distribution<int>(low, high)(random));
    return lengths;
  };
  const Lengths captions = some(64, 6, 32);  // one after the other: both draw from one generator
  return joined(captions, some(32, 96, 256));
}
at::Tensor offsets_of(const Lengths& lengths) {
  std::vector<std::int64_t> offsets{0};
  for (const auto length : lengths) offsets.push_back(offsets.back() + length);
  return at::tensor(offsets, at::kLong);
}
nn::Spans spans_of(const Lengths& lengths) {
  return {offsets_of(lengths).to(at::kInt).to(kHalves.device()),
          *std::max_element(lengths.begin(), lengths.end())};
}

// A decoder layer's own.
void causal(const std::string& shape, const Lengths& lengths, std::int64_t heads, std::int64_t dim,
            bool alibi) {
  const nn::Segments segments(offsets_of(lengths), {}, kHalves.device());
  nn::AttentionRule rule{.scale = 1 / std::sqrt(static_cast<double>(dim))};
  if (alibi) rule.slopes = nn::alibi_slopes(heads, 8).to(kHalves.device());
  const auto masks = nn::attention_masks(segments, rule, kHalves);
  const std::int64_t tokens = segments.num_tokens(), width = heads * dim;
  const std::vector<std::int64_t> size{tokens, 3 * width};
  const auto apart = [&](const std::vector<at::Tensor>& rows) {
    const auto parts = rows[0].split(width, 1);
    const auto by_head = [&](const at::Tensor& x) { return x.reshape({tokens, heads, dim}); };
    return nn::attention(by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), segments, masks,
                         rule);
  };
  report(shape, "own, inside of rows", {size}, [&](const std::vector<at::Tensor>& rows) {
    return nn::attention({.q = rows[0],
                          .q_heads = {0, heads, dim},
                          .k_heads = {width, heads, dim},
                          .v_heads = {2 * width, heads, dim},
                          .dim = dim},
                         segments, rule);
  });
  report(shape, "own, taken apart", {size}, apart);
  kernels::allow(false);
  report(shape, alibi ? "padded, with a mask" : "torch's flash", {size}, apart);
  kernels::allow(true);
}

// Text that looks at images, the resampler's latents at patches, patches at each other.
void across(const std::string& shape, const Lengths& queries, const Lengths& keys,
            std::int64_t heads, std::int64_t dim, bool backward) {
  const nn::Spans from = spans_of(queries), to = spans_of(keys);
  const std::int64_t inner = heads * dim, count = static_cast<std::int64_t>(queries.size());
  const std::vector<std::int64_t> q_size{offsets_of(queries)[-1].item<std::int64_t>(), inner};
  const std::vector<std::int64_t> kv_size{offsets_of(keys)[-1].item<std::int64_t>(), 2 * inner};
  const nn::PackedRule rule{.scale = 1 / std::sqrt(static_cast<double>(dim))};
  report(
      shape, "own, inside of rows", {q_size, kv_size},
      [&](const std::vector<at::Tensor>& rows) {
        return nn::packed_attention({.q = rows[0],
                                     .k = rows[1],
                                     .q_heads = {0, heads, dim},
                                     .k_heads = {0, heads, dim},
                                     .v_heads = {inner, heads, dim},
                                     .dim = dim},
                                    from, to, rule);
      },
      backward);
  kernels::allow(false);
  report(
      shape, "torch's flash", {q_size, kv_size},
      [&](const std::vector<at::Tensor>& rows) {
        const auto kv = rows[1].view({-1, 2, heads, dim}).unbind(1);
        return nn::packed_attention(rows[0].view({-1, heads, dim}), kv[0], kv[1], from, to, rule);
      },
      backward);
  kernels::allow(true);
  if (from.longest * count != q_size[0] || to.longest * count != kv_size[0]) return;
  report(
      shape, "torch's sdpa", {q_size, kv_size},
      [&](const std::vector<at::Tensor>& rows) {
        const at::Tensor q = rows[0].view({count, -1, heads, dim}).transpose(1, 2);
        const auto kv = rows[1].view({count, -1, 2, heads, dim}).unbind(2);
        return at::scaled_dot_product_attention(q, kv[0].transpose(1, 2), kv[1].transpose(1, 2))
            .transpose(1, 2)
            .reshape({-1, inner});
      },
      backward);
}

}  // namespace

int main() {
  const Lengths full = joined(repeated(64, 32), repeated(32, 256));
  causal("of3b full", full, 16, 128, true);
  causal("of3b natural", natural(), 16, 128, true);
  causal("of9b full", full, 32, 128, true);
  causal("of9b natural", natural(), 32, 128, true);
  causal("of4b full", full, 32, 80, false);
  causal("long 4 x 4096", repeated(4, 4096), 16, 128, false);
  // 64 captions with an image, 32 documents with six.
  const Lengths text = joined(repeated(64, 32), repeated(192, 42));
  across("gates", text, repeated(256, 64), 8, 64, true);
  across("resampler", repeated(256, 64), repeated(256, 320), 8, 64, true);
  across("image tower", repeated(256, 257), repeated(256, 257), 16, 64, false);
  return 0;
}
