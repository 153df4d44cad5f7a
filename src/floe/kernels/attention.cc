#include "floe/kernels/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "floe/kernels/kernels.h"
#include "floe/kernels/rehearsal.h"
#ifdef FLOE_CUDA
#include "floe/kernels/on_device.h"
#endif

namespace floe::kernels {

namespace {

bool lies_well(const at::Tensor& heads) {
  return heads.dim() == 3 && heads.stride(2) == 1 && heads.stride(0) % 8 == 0 &&
         heads.stride(1) % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(heads.const_data_ptr()) % 16 == 0;
}

}  // namespace

bool attention_has(at::ScalarType dtype, std::int64_t dim, at::Device device) {
  if (!are_allowed() || (dtype != at::kBFloat16 && dtype != at::kHalf)) return false;
  if (device.is_meta())
    return is_rehearsed_gpu(device) && (dim == 64 || dim == 80 || dim == 96 || dim == 128);
#ifdef FLOE_CUDA
  return device.is_cuda() &&
         attention_runs(dim, device.has_index() ? device.index() : c10::cuda::current_device());
#else
  return false;
#endif
}

bool attention_fits(const Qkv& qkv, std::int64_t spans) {
  const auto& [q, k, v] = qkv;
  const auto dtype = q.scalar_type();
  constexpr std::int64_t kMostSpans = 65535;  // a grid has no more blocks in this direction
  return attention_has(dtype, q.size(2), q.device()) && k.scalar_type() == dtype &&
         v.scalar_type() == dtype && lies_well(q) && lies_well(k) && lies_well(v) &&
         q.size(1) % k.size(1) == 0 && spans <= kMostSpans;
}

#ifdef FLOE_CUDA
namespace {

HeadsOf heads_of(const at::Tensor& heads) {
  // The kernels write only to what they are to write.
  return {const_cast<void*>(heads.const_data_ptr()), heads.stride(0), heads.stride(1)};
}

AttentionShape shape_of(const Qkv& qkv, const AttentionRule& rule) {
  AttentionShape shape;
  shape.queries = {rule.query_offsets.const_data_ptr<int>(), static_cast<int>(rule.longest_query)};
  shape.keys = {rule.key_offsets.const_data_ptr<int>(), static_cast<int>(rule.longest_key)};
  shape.spans = static_cast<int>(rule.query_offsets.numel() - 1);
  shape.causal = rule.causal;
  if (rule.slopes.defined()) shape.slopes = rule.slopes.const_data_ptr<float>();
  shape.tokens = qkv.q.size(0);
  shape.heads = static_cast<int>(qkv.q.size(1));
  shape.queries_per_key = static_cast<int>(qkv.q.size(1) / qkv.k.size(1));
  shape.dim = static_cast<int>(qkv.q.size(2));
  shape.scale = static_cast<float>(rule.scale);
  return shape;
}

}  // namespace

Attended attention(const Qkv& qkv, const AttentionRule& rule) {
  if (qkv.q.is_meta()) return rehearsed::attention(qkv, rule);
  const at::Tensor& q = qkv.q;
  Attended result{at::empty(q.sizes(), q.options()),
                  at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat))};
  launch_attention(type_of(q), shape_of(qkv, rule), heads_of(q), heads_of(qkv.k), heads_of(qkv.v),
                   heads_of(result.mixed), result.logsumexp.mutable_data_ptr<float>(), OnDevice(q));
  return result;
}

void attention_backward(const Qkv& qkv, const AttentionRule& rule, const Attended& attended,
                        const at::Tensor& grad, const Qkv& grads) {
  if (qkv.q.is_meta()) return rehearsed::attention_backward(qkv, rule);
  const at::Tensor delta = at::empty_like(attended.logsumexp);
  launch_attention_backward(type_of(qkv.q), shape_of(qkv, rule), heads_of(qkv.q), heads_of(qkv.k),
                            heads_of(qkv.v), heads_of(attended.mixed), heads_of(grad),
                            attended.logsumexp.const_data_ptr<float>(),
                            delta.mutable_data_ptr<float>(), heads_of(grads.q), heads_of(grads.k),
                            heads_of(grads.v), OnDevice(qkv.q));
}

#else

Attended attention(const Qkv& qkv, const AttentionRule& rule) {
  if (!is_rehearsed(qkv.q)) missing();
  return rehearsed::attention(qkv, rule);
}
void attention_backward(const Qkv& qkv, const AttentionRule& rule, const Attended&,
                        const at::Tensor&, const Qkv&) {
  if (!is_rehearsed(qkv.q)) missing();
  rehearsed::attention_backward(qkv, rule);
}

#endif

}  // namespace floe::kernels
