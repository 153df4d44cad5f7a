#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <vector>

#include "floe/kernels/attention.h"
#include "floe/kernels/kernels.h"
#include "floe/kernels/rehearsal.h"
#include "floe/nn/activations/kept_products.h"
#include "floe/nn/attention.h"
#include "floe/nn/boundary.h"

namespace floe::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// The heads at `places` of rows [N, width] as [N, heads, dim].
at::Tensor heads_at(const at::Tensor& rows, const HeadPlaces& places, std::int64_t dim) {
  return rows.as_strided({rows.size(0), places.heads, dim}, {rows.stride(0), places.stride, 1},
                         rows.storage_offset() + places.offset);
}

// The same places in the rows of these tensors.
kernels::Qkv views(const PackedHeads& at, const at::Tensor& q, const at::Tensor& k,
                   const at::Tensor& v) {
  const at::Tensor& keys = k.defined() ? k : q;
  const at::Tensor& values = v.defined() ? v : keys;
  return {heads_at(q, at.q_heads, at.dim), heads_at(keys, at.k_heads, at.dim),
          heads_at(values, at.v_heads, at.dim)};
}
kernels::Qkv views(const PackedHeads& heads) {
  const at::AutoGradMode grad_off(false);
  return views(heads, heads.q, heads.k, heads.v);
}

// What backward needs of a call beside tensors.
struct Call {
  PackedHeads places;  // without tensors
  std::int64_t longest_query = 0, longest_key = 0;
  bool causal = false;
  double scale = 1;

  void save(AutogradContext& context) const {
    std::vector<std::int64_t> numbers{places.dim, longest_query, longest_key, causal ? 1 : 0};
    for (const HeadPlaces& p : {places.q_heads, places.k_heads, places.v_heads})
      numbers.insert(numbers.end(), {p.offset, p.heads, p.stride});
    context.saved_data["numbers"] = numbers;
    context.saved_data["scale"] = scale;
  }
  static Call load(AutogradContext& context) {
    const auto numbers = context.saved_data["numbers"].toIntVector();
    const auto at = [&](std::size_t i) {
      return HeadPlaces{numbers[i], numbers[i + 1], numbers[i + 2]};
    };
    Call call;
    call.places.dim = numbers[0];
    call.places.q_heads = at(4), call.places.k_heads = at(7), call.places.v_heads = at(10);
    call.longest_query = numbers[1], call.longest_key = numbers[2];
    call.causal = numbers[3] != 0;
    call.scale = context.saved_data["scale"].toDouble();
    return call;
  }
  kernels::AttentionRule rule(const at::Tensor& query_offsets, const at::Tensor& key_offsets,
                              const at::Tensor& slopes) const {
    return {query_offsets, key_offsets, longest_query, longest_key, causal, scale, slopes};
  }
};

at::Tensor rows_like(const at::Tensor& rows) {
  return rows.defined() ? at::empty(rows.sizes(), rows.options()) : at::Tensor();
}

struct OwnAttention : torch::autograd::Function<OwnAttention> {
  static Variable forward(AutogradContext* context, const Variable& q, const MaybeTensor& maybe_k,
                          const MaybeTensor& maybe_v, const at::Tensor& query_offsets,
                          const at::Tensor& key_offsets, const MaybeTensor& maybe_slopes,
                          const Call& call) {
    const at::Tensor k = tensor_of(maybe_k), v = tensor_of(maybe_v),
                     slopes = tensor_of(maybe_slopes);
    const auto attended = keep_results("floe::attention", {q, k, v}, [&] {
      const auto now = kernels::attention(views(call.places, q, k, v),
                                          call.rule(query_offsets, key_offsets, slopes));
      return std::vector{now.mixed, now.logsumexp};
    });
    const at::Tensor mixed = attended[0].view({q.size(0), -1});
    context->save_for_backward({q, k, v, query_offsets, key_offsets, slopes, mixed, attended[1]});
    call.save(*context);
    return mixed;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &mixed = saved[6];
    const Call call = Call::load(*context);
    const at::Tensor q_grad = rows_like(q), k_grad = rows_like(k), v_grad = rows_like(v);
    const std::vector<std::int64_t> by_head{q.size(0), call.places.q_heads.heads, call.places.dim};
    kernels::attention_backward(
        views(call.places, q, k, v), call.rule(saved[3], saved[4], saved[5]),
        {mixed.view(by_head), saved[7]}, grads[0].contiguous().view(by_head),
        views(call.places, q_grad, k_grad, v_grad));
    return {q_grad, k_grad, v_grad, {}, {}, {}, {}};
  }
};

bool flash_takes(const at::TensorOptions& options, std::int64_t dim, const PackedRule& rule) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  const bool on_gpu = options.device().is_cuda() || kernels::is_rehearsed_gpu(options.device());
  return on_gpu && (dtype == at::kBFloat16 || dtype == at::kHalf) && dim % 8 == 0 && dim <= 256 &&
         !rule.slopes.defined();
}

// Measured on an H200 (bench_attention): of 256 keys the own kernel takes 0.60 ms where flash and
// the copies around it take 0.78, of 4096 keys 7.5 ms against 3.5.
bool flash_is_faster(const at::TensorOptions& options, std::int64_t dim, const Spans& keys,
                     const PackedRule& rule) {
  constexpr std::int64_t kManyKeys = 512;
  return keys.longest > kManyKeys && flash_takes(options, dim, rule);
}

// cuDNN's kernel for Hopper, which takes sequences of one length only and makes a plan for each
// length that it meets: not for those that are as long as they happen to be. Measured on an H200 (2
// × 4096 tokens, 32 heads of 128, 8 of keys, causal): 0.48 and 1.46 ms back, flash 0.91 and 2.62.
bool cudnn_is_faster(const at::Tensor& q, const Spans& queries, const Spans& keys,
                     std::int64_t num_keys) {
  constexpr std::int64_t kPlanned = 256, kManyHeadFeatures = 128;
  const std::int64_t sequences = queries.offsets.numel() - 1;
  return queries.longest == keys.longest && queries.longest % kPlanned == 0 &&
         sequences * queries.longest == q.size(0) && num_keys == q.size(0) &&
         q.size(2) <= kManyHeadFeatures && at::globalContext().userEnabledCuDNNSDP() &&
         !at::globalContext().deterministicAlgorithms() && kernels::is_hopper(q.device());
}

at::Tensor cudnn_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const Spans& spans, const PackedRule& rule) {
  const auto by_sequence = [&](const at::Tensor& x) {  // [S, H, T, D]
    return x.view({-1, spans.longest, x.size(1), x.size(2)}).transpose(1, 2);
  };
  const bool differentiable = torch::autograd::compute_requires_grad(q, k, v);
  const at::Tensor mixed = std::get<0>(at::_scaled_dot_product_cudnn_attention(
      by_sequence(q), by_sequence(k), by_sequence(v), /*attn_bias=*/{}, differentiable,
      /*dropout_p=*/0.0, rule.causal, /*return_debug_mask=*/false, rule.scale));
  return mixed.transpose(1, 2).reshape({q.size(0), -1});
}

}  // namespace

PackedHeads cross_attention_heads(const at::Tensor& q, const at::Tensor& kv, std::int64_t heads,
                                  std::int64_t dim) {
  const std::int64_t inner = heads * dim;
  return {.q = q.view({-1, inner}),
          .k = kv.view({-1, 2 * inner}),
          .v = {},
          .q_heads = {0, heads, dim},
          .k_heads = {0, heads, dim},
          .v_heads = {inner, heads, dim},
          .dim = dim};
}

at::Tensor packed_attention(const PackedHeads& heads, const Spans& queries, const Spans& keys,
                            const PackedRule& rule) {
  if (flash_is_faster(heads.q.options(), heads.dim, keys, rule) ||
      !kernels::attention_fits(views(heads), queries.offsets.numel() - 1))
    return {};
  Call call{heads, queries.longest, keys.longest, rule.causal, rule.scale};
  call.places.q = call.places.k = call.places.v = at::Tensor();
  return OwnAttention::apply(heads.q, some(heads.k), some(heads.v), queries.offsets, keys.offsets,
                             some(rule.slopes), call);
}

at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Spans& queries, const Spans& keys, const PackedRule& rule) {
  const std::int64_t dim = q.size(2);
  if (!packs(q.options(), dim, rule)) return {};
  if (kernels::attention_has(q.scalar_type(), dim, q.device())) {
    const auto rows = [](const at::Tensor& x) { return x.reshape({x.size(0), -1}); };
    const HeadPlaces shared{0, k.size(1), dim};
    const at::Tensor mixed = packed_attention(
        {rows(q), rows(k), rows(v), {0, q.size(1), dim}, shared, shared, dim}, queries, keys, rule);
    if (mixed.defined()) return mixed;
  }
  if (!flash_takes(q.options(), dim, rule)) return {};
  if (cudnn_is_faster(q, queries, keys, k.size(0))) return cudnn_attention(q, k, v, queries, rule);
  const at::Tensor mixed = std::get<0>(at::_flash_attention_forward(
      q, k, v, queries.offsets, keys.offsets, queries.longest, keys.longest, /*dropout_p=*/0.0,
      rule.causal, /*return_debug_mask=*/false, rule.scale));
  return mixed.reshape({mixed.size(0), -1});
}

bool packs(at::TensorOptions options, std::int64_t dim, const PackedRule& rule) {
  return flash_takes(options, dim, rule) ||
         kernels::attention_has(c10::typeMetaToScalarType(options.dtype()), dim, options.device());
}

}  // namespace floe::nn
