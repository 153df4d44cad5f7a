#include "floe/nn/attention.h"

#include <ATen/ATen.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "floe/batch/packed_batch.h"
#include "floe/core/error.h"
#include "floe/nn/activations/kept_products.h"
#include "floe/nn/boundary.h"

namespace floe::nn {

KvCache::Layer& KvCache::layer(std::size_t index, const at::Tensor& like) {
  if (layers_.size() <= index) layers_.resize(index + 1);
  Layer& layer = layers_[index];
  if (!layer.keys.defined()) {
    // Zeros: masked places are multiplied by zero, which must not meet a NaN.
    layer.keys = at::zeros({sequences(), capacity_, like.size(1), like.size(2)}, like.options());
    layer.values = at::zeros_like(layer.keys);
  }
  return layer;
}

void KvCache::reserve(std::int64_t capacity) {
  if (capacity <= capacity_) return;
  const std::int64_t added = std::max(capacity - capacity_, capacity_);
  capacity_ += added;
  pass_.reset();
  for (Layer& layer : layers_) {
    if (!layer.keys.defined()) continue;
    const at::Tensor room = at::zeros(
        {layer.keys.size(0), added, layer.keys.size(2), layer.keys.size(3)}, layer.keys.options());
    layer.keys = at::cat({layer.keys, room}, 1);
    layer.values = at::cat({layer.values, room}, 1);
  }
}

void KvCache::advance(const std::vector<std::int64_t>& lengths) {
  require(lengths.size() == past_.size(), "the cache holds ", past_.size(), " sequences, not ",
          lengths.size());
  for (std::size_t s = 0; s < lengths.size(); ++s) past_[s] += lengths[s];
  pass_.reset();
}

void KvCache::reorder(const std::vector<std::int64_t>& from) {
  bool moved = from.size() != past_.size();
  std::vector<std::int64_t> past;
  for (std::size_t s = 0; s < from.size(); ++s) {
    require(from[s] >= 0 && from[s] < sequences(), "the cache holds ", sequences(),
            " sequences, but number ", from[s], " is asked for");
    moved = moved || from[s] != static_cast<std::int64_t>(s);
    past.push_back(past_[static_cast<std::size_t>(from[s])]);
  }
  if (!moved) return;
  past_ = std::move(past);
  pass_.reset();
  for (Layer& layer : layers_) {
    const at::Tensor index = at::tensor(from, at::kLong).to(layer.keys.device());
    layer.keys = layer.keys.index_select(0, index);
    layer.values = layer.values.index_select(0, index);
  }
}

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// [T, K] of how far key j lies before query i + past.
at::Tensor distances(std::int64_t queries, std::int64_t keys, std::int64_t past,
                     at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  return (at::arange(queries, options) + past).unsqueeze(1) - at::arange(keys, options);
}

at::Tensor out_of_sight(const at::Tensor& distance, std::int64_t window) {
  at::Tensor hidden = distance.lt(0);
  return window > 0 ? hidden.logical_or(distance.ge(window)) : hidden;
}

at::Tensor heads_first(const at::Tensor& x) { return x.transpose(1, 2); }  // [B, T, H, D]

// While it lives, torch does not choose cuDNN's attention.
class WithoutCudnn {
 public:
  WithoutCudnn() : before_(at::globalContext().userEnabledCuDNNSDP()) {
    at::globalContext().setSDPUseCuDNN(false);
  }
  ~WithoutCudnn() { at::globalContext().setSDPUseCuDNN(before_); }
  WithoutCudnn(const WithoutCudnn&) = delete;
  WithoutCudnn& operator=(const WithoutCudnn&) = delete;

 private:
  bool before_;
};

}  // namespace

bool cudnn_sees_the_end(std::int64_t queries, std::int64_t keys) {
  constexpr std::int64_t kTile = 128, kTakenForFull = 64;
  return keys % kTakenForFull != 0 || (keys % kTile == 0 && queries % kTile == 0);
}

at::Tensor torch_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& mask, const TorchAttentionRule& rule) {
  std::optional<WithoutCudnn> wrong_there;
  const bool comes_back = torch::autograd::compute_requires_grad(q, k, v) || runs_twice();
  if (q.is_cuda() && comes_back && !cudnn_sees_the_end(q.size(2), k.size(2))) wrong_there.emplace();
  return at::scaled_dot_product_attention(q, k, v, some(mask), rule.dropout, rule.causal,
                                          rule.scale, /*enable_gqa=*/q.size(1) != k.size(1));
}

namespace {

at::Tensor sdpa(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                const at::Tensor& mask, const AttentionRule& rule) {
  return torch_attention(q, k, v, mask, {rule.scale, rule.causal && !mask.defined(), rule.dropout});
}

// Whether the rule is one that packed attention knows.
bool is_packable(const Segments& segments, const AttentionRule& rule) {
  return segments.offsets().defined() && segments.num_tokens() > 0 && rule.dropout == 0 &&
         (rule.window == 0 || rule.window >= segments.longest());
}
Spans spans_of(const Segments& segments) { return {segments.offsets(), segments.longest()}; }
PackedRule packed_rule(const AttentionRule& rule, at::Device device) {
  return {rule.causal, rule.scale,
          rule.slopes.defined() ? to_device(rule.slopes, device) : rule.slopes};
}

// Of tokens that see their whole sequence: what lies behind it in a shorter row is hidden.
at::Tensor mask_both_ways(const Bucket& bucket, at::TensorOptions options) {
  if (bucket.is_full() && !bucket.hidden.defined()) return {};
  const auto longs = at::TensorOptions().dtype(at::kLong);
  const at::Tensor ends = to_device(at::tensor(bucket.lengths, longs), options.device());
  at::Tensor hidden =
      at::arange(bucket.length, longs.device(options.device())).ge(ends.unsqueeze(1));
  if (bucket.hidden.defined()) hidden = hidden.logical_or(bucket.hidden);
  // A row of nothing but padding would become NaN: its places see each other.
  hidden = hidden.logical_and(hidden.all(1, /*keepdim=*/true).logical_not());
  return at::zeros(hidden.sizes(), options)
      .masked_fill_(hidden, kNever)
      .unsqueeze(1)
      .unsqueeze(2);  // [rows, 1, 1, length]
}

}  // namespace

bool attention_packs(const Segments& segments, const AttentionRule& rule, at::TensorOptions options,
                     std::int64_t dim) {
  return is_packable(segments, rule) && packs(options, dim, {rule.causal, rule.scale, rule.slopes});
}

std::vector<at::Tensor> attention_masks(const Segments& segments, const AttentionRule& rule,
                                        at::TensorOptions options) {
  std::vector<at::Tensor> masks;
  for (const Bucket& bucket : segments.buckets()) {
    at::Tensor& mask = masks.emplace_back();
    if (!rule.causal) {
      mask = mask_both_ways(bucket, options);
      continue;
    }
    const bool windowed = rule.window > 0 && rule.window < bucket.length;
    if (!rule.slopes.defined() && !windowed && !bucket.hidden.defined()) continue;
    const auto distance = distances(bucket.length, bucket.length, 0, options.device());
    at::Tensor hidden = out_of_sight(distance, rule.window).unsqueeze(0).unsqueeze(0);
    if (bucket.hidden.defined()) {
      hidden = hidden.logical_or(bucket.hidden.unsqueeze(1).unsqueeze(2));
      // Padding before the first token would see nothing and become NaN: it sees itself.
      hidden = hidden.logical_and(
          hidden.all(-1, /*keepdim=*/true).logical_and(distance.eq(0)).logical_not());
    }
    at::Tensor added = at::zeros({1}, options.dtype(at::kFloat));
    if (rule.slopes.defined())
      added =
          -to_device(rule.slopes, options.device()).view({1, -1, 1, 1}) * distance.to(at::kFloat);
    mask = at::where(hidden, at::scalar_tensor(kNever, options.dtype(at::kFloat)), added)
               .to(c10::typeMetaToScalarType(options.dtype()));
  }
  return masks;
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const Segments& segments, const std::vector<at::Tensor>& masks,
                     const AttentionRule& rule) {
  const std::int64_t width = q.size(1) * v.size(2);
  if (is_packable(segments, rule)) {
    const Spans spans = spans_of(segments);
    const at::Tensor mixed = packed_attention(q, k, v, spans, spans, packed_rule(rule, q.device()));
    if (mixed.defined()) return mixed;
  }
  if (masks.size() != segments.buckets().size())
    return attention(q, k, v, segments, attention_masks(segments, rule, q.options()), rule);
  const auto queries = segments.parts(segments.pad(q)), keys = segments.parts(segments.pad(k)),
             values = segments.parts(segments.pad(v));
  std::vector<at::Tensor> mixed;
  for (std::size_t b = 0; b < segments.buckets().size(); ++b) {
    const Bucket& bucket = segments.buckets()[b];
    mixed.push_back(heads_first(sdpa(heads_first(queries[b]), heads_first(keys[b]),
                                     heads_first(values[b]), masks[b], rule))
                        .reshape({bucket.rows * bucket.length, width}));
  }
  if (mixed.empty()) return v.reshape({0, width});
  return segments.unpad(mixed.size() == 1 ? mixed[0] : at::cat(mixed));
}

at::Tensor attention(const PackedHeads& heads, const Segments& segments,
                     const AttentionRule& rule) {
  if (!is_packable(segments, rule)) return {};
  const Spans spans = spans_of(segments);
  return packed_attention(heads, spans, spans, packed_rule(rule, heads.q.device()));
}

namespace {

// Scores of a bucket's tokens against what the cache holds of their sequences: [rows, H or 1, T,
// keys].
at::Tensor mask_of_past(const Bucket& bucket, const std::vector<std::int64_t>& past,
                        std::int64_t keys, const AttentionRule& rule, at::TensorOptions options) {
  at::Tensor place = at::empty({bucket.rows, bucket.length}, at::kLong);
  auto* at = place.mutable_data_ptr<std::int64_t>();
  // Padding looks where the last token does.
  for (std::size_t row = 0; row < past.size(); ++row)
    for (std::int64_t i = 0; i < bucket.length; ++i)
      *at++ = past[row] + std::min(i, bucket.lengths[row] - 1);
  const at::Device device = options.device();
  const at::Tensor distance =
      to_device(place, device).unsqueeze(2) - at::arange(keys, options.dtype(at::kLong));
  at::Tensor added = at::zeros({1}, options.dtype(at::kFloat));
  if (rule.slopes.defined())
    added =
        -to_device(rule.slopes, device).view({1, -1, 1, 1}) * distance.unsqueeze(1).to(at::kFloat);
  return at::where(out_of_sight(distance, rule.window).unsqueeze(1),
                   at::scalar_tensor(kNever, options.dtype(at::kFloat)), added)
      .to(c10::typeMetaToScalarType(options.dtype()));
}

}  // namespace

const KvCache::Pass& KvCache::pass(const Segments& segments, const AttentionRule& rule,
                                   at::TensorOptions options, std::int64_t head_dim) {
  if (pass_) return *pass_;
  Pass& pass = pass_.emplace();
  pass.first = std::all_of(past_.begin(), past_.end(), [](auto tokens) { return tokens == 0; });
  at::Tensor places = at::empty({segments.num_tokens()}, at::kLong);
  auto* place = places.mutable_data_ptr<std::int64_t>();
  const std::vector<std::int64_t> begins = segments.begins();
  for (std::size_t s = 0; s < past_.size(); ++s) {
    const std::int64_t length = begins[s + 1] - begins[s];
    require(past_[s] + length <= capacity_, "the cache has room for ", capacity_,
            " tokens of a sequence, ", past_[s] + length, " are needed");
    for (std::int64_t i = 0; i < length; ++i)
      *place++ = static_cast<std::int64_t>(s) * capacity_ + past_[s] + i;
  }
  pass.places = to_device(places, options.device());
  if (pass.first) {
    if (!attention_packs(segments, rule, options, head_dim))
      pass.masks = attention_masks(segments, rule, options);
    return pass;
  }
  for (const Bucket& bucket : segments.buckets()) {
    std::vector<std::int64_t> past;
    std::int64_t longest = 0;
    for (std::size_t row = 0; row < bucket.sequences.size(); ++row) {
      past.push_back(past_[static_cast<std::size_t>(bucket.sequences[row])]);
      longest = std::max(longest, past.back() + bucket.lengths[row]);
    }
    pass.longest.push_back(longest);
    pass.masks.push_back(mask_of_past(bucket, past, longest, rule, options));
    pass.sequences.emplace_back();
    if (bucket.rows != sequences())
      pass.sequences.back() = to_device(at::tensor(bucket.sequences, at::kLong), options.device());
  }
  return pass;
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const Segments& segments, KvCache& cache, std::size_t layer,
                     const AttentionRule& rule) {
  const std::int64_t width = q.size(1) * v.size(2);
  KvCache::Layer& seen = cache.layer(layer, k);
  const KvCache::Pass& pass = cache.pass(segments, rule, q.options(), q.size(2));
  seen.keys.flatten(0, 1).index_copy_(0, pass.places, k);
  // With autocast, keys that were rotated may be of a wider type than values.
  seen.values.flatten(0, 1).index_copy_(0, pass.places, v.to(seen.values.scalar_type()));
  if (pass.first) return attention(q, k, v, segments, pass.masks, rule);
  // cuDNN makes a plan for every shape that it meets, which takes it tens of milliseconds, and with
  // every token of a text keys have another one.
  const WithoutCudnn shapes_change;
  const std::vector<at::Tensor> queries = segments.parts(segments.pad(q));
  std::vector<at::Tensor> mixed;
  for (std::size_t b = 0; b < segments.buckets().size(); ++b) {
    const Bucket& bucket = segments.buckets()[b];
    const auto of_rows = [&](const at::Tensor& memory) {
      const at::Tensor& rows = pass.sequences[b];
      const at::Tensor filled = memory.narrow(1, 0, pass.longest[b]);
      return heads_first(rows.defined() ? filled.index_select(0, rows) : filled);
    };
    mixed.push_back(heads_first(sdpa(heads_first(queries[b]), of_rows(seen.keys),
                                     of_rows(seen.values), pass.masks[b], rule))
                        .reshape({bucket.rows * bucket.length, width}));
  }
  if (mixed.empty()) return v.reshape({0, width});
  return segments.unpad(mixed.size() == 1 ? mixed[0] : at::cat(mixed));
}

at::Tensor alibi_slopes(std::int64_t heads, double bias_max) {
  std::int64_t power = 1;
  while (power < heads) power *= 2;
  std::vector<float> slopes;
  for (std::int64_t i = 1; i <= power; ++i)
    slopes.push_back(static_cast<float>(1 / std::pow(2, i * bias_max / power)));
  std::vector<float> result;
  if (power == heads) {
    result = std::move(slopes);
  } else {
    for (std::int64_t i = 1; i < power; i += 2)
      result.push_back(slopes[static_cast<std::size_t>(i)]);
    for (std::int64_t i = 0; i < power; i += 2)
      result.push_back(slopes[static_cast<std::size_t>(i)]);
    result.resize(static_cast<std::size_t>(heads));
  }
  return at::tensor(result);
}

}  // namespace floe::nn
