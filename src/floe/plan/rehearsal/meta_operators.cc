// Operators of a training step that torch knows on the meta device only through Python: here they
// allocate what they would allocate on a GPU, or on the CPU where the rehearsal stands for that.
#include <ATen/ExpandUtils.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_flash_attention_forward_ops.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "floe/kernels/rehearsal.h"

namespace floe::plan {
namespace {

using Maybe = std::optional<at::Tensor>;

at::Tensor index_select(const at::Tensor& self, std::int64_t dim, const at::Tensor& index) {
  std::vector<std::int64_t> sizes = self.sizes().vec();
  if (!sizes.empty())
    sizes[static_cast<std::size_t>(dim < 0 ? dim + self.dim() : dim)] = index.numel();
  return at::empty(sizes, self.options());
}

at::Tensor embedding_dense_backward(const at::Tensor& grad, const at::Tensor&, c10::SymInt rows,
                                    c10::SymInt, bool) {
  return at::empty({rows.expect_int(), grad.size(-1)}, grad.options());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_layer_norm(const at::Tensor& input,
                                                                 c10::SymIntArrayRef shape,
                                                                 const Maybe&, const Maybe&,
                                                                 double) {
  std::vector<std::int64_t> sizes = input.sizes().vec();
  for (std::size_t i = sizes.size() - shape.size(); i < sizes.size(); ++i) sizes[i] = 1;
  const auto floats = input.options().dtype(at::kFloat);
  return {at::empty_like(input, at::MemoryFormat::Contiguous), at::empty(sizes, floats),
          at::empty(sizes, floats)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_layer_norm_backward(
    const at::Tensor&, const at::Tensor& input, c10::SymIntArrayRef, const at::Tensor&,
    const at::Tensor&, const Maybe& weight, const Maybe& bias, std::array<bool, 3> wanted) {
  return {wanted[0] ? at::empty_like(input, at::MemoryFormat::Contiguous) : at::Tensor(),
          wanted[1] && weight ? at::empty_like(*weight) : at::Tensor(),
          wanted[2] && bias ? at::empty_like(*bias) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor> fused_rms_norm(const at::Tensor& input, at::IntArrayRef shape,
                                                  const Maybe&, std::optional<double>) {
  std::vector<std::int64_t> sizes = input.sizes().vec();
  for (std::size_t i = sizes.size() - shape.size(); i < sizes.size(); ++i) sizes[i] = 1;
  return {at::empty_like(input, at::MemoryFormat::Contiguous),
          at::empty(sizes, input.options().dtype(at::kFloat))};
}

std::tuple<at::Tensor, at::Tensor> fused_rms_norm_backward(const at::Tensor&,
                                                           const at::Tensor& input, at::IntArrayRef,
                                                           const at::Tensor&, const Maybe& weight,
                                                           std::array<bool, 2> wanted) {
  return {wanted[0] ? at::empty_like(input, at::MemoryFormat::Contiguous) : at::Tensor(),
          wanted[1] && weight ? at::empty_like(*weight) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double,
                                                  std::optional<bool>) {
  return {at::empty_like(input), at::empty_like(input, input.options().dtype(at::kBool))};
}
at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor&, double) {
  return at::empty_like(grad);
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const Maybe&,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                       c10::SymIntArrayRef dilation, bool, c10::SymIntArrayRef, c10::SymInt) {
  std::vector<std::int64_t> sizes{input.size(0), weight.size(0)};
  const auto at = [](c10::SymIntArrayRef values, std::int64_t i) {
    const auto place = static_cast<std::size_t>(i);
    return values[values.size() == 1 ? 0 : place].expect_int();
  };
  for (std::int64_t d = 2; d < input.dim(); ++d) {
    const std::int64_t reach = at(dilation, d - 2) * (weight.size(d) - 1) + 1;
    sizes.push_back((input.size(d) + 2 * at(padding, d - 2) - reach) / at(stride, d - 2) + 1);
  }
  return at::empty(sizes, input.options());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
    at::OptionalSymIntArrayRef bias, c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymIntArrayRef,
    bool, c10::SymIntArrayRef, c10::SymInt, std::array<bool, 3> wanted) {
  return {wanted[0] ? at::empty_like(input) : at::Tensor(),
          wanted[1] ? at::empty_like(weight) : at::Tensor(),
          wanted[2] && bias ? at::empty({weight.size(0)}, grad.options()) : at::Tensor()};
}

at::Tensor& mm_of_dtype(const at::Tensor&, const at::Tensor&, at::ScalarType, at::Tensor& out) {
  return out;
}

kernels::AttentionWork flash_work(const at::Tensor& query, const at::Tensor& key,
                                  const Maybe& offsets, std::int64_t longest, bool causal,
                                  bool backward) {
  const auto bytes = static_cast<std::int64_t>(2 * query.nbytes() + 2 * key.nbytes());
  return {.queries = query.numel() / query.size(-1) / query.size(-2),
          .keys = key.numel() / key.size(-1) / key.size(-2),
          .heads = query.size(-2),
          .dim = query.size(-1),
          .spans = offsets ? offsets->numel() - 1 : query.size(0),
          .longest_key = longest,
          .bytes = backward ? 2 * bytes : bytes,
          .causal = causal,
          .backward = backward,
          .flash = true};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> flash_attention(
    const at::Tensor& query, const at::Tensor& key, const Maybe& query_offsets,
    const c10::SymInt& longest, bool causal) {
  const auto floats = query.options().dtype(at::kFloat);
  const std::int64_t tokens = query.numel() / query.size(-1) / query.size(-2);
  if (auto* rehearsal = kernels::Rehearsal::current())
    rehearsal->attention(
        flash_work(query, key, query_offsets, longest.expect_int(), causal, /*backward=*/false));
  const auto longs = query.options().dtype(at::kLong);
  return {at::empty(query.sizes(), query.options()), at::empty({query.size(-2), tokens}, floats),
          at::empty({2}, longs), at::empty({0}, longs), at::empty({0}, query.options())};
}
// Versions of torch after 2.11 have more parameters behind those.
template <class Signature>
struct FlashAttention;
template <class Result, class... Parameters>
struct FlashAttention<Result(Parameters...)> {
  static Result run(Parameters... parameters) {
    const auto all = std::forward_as_tuple(parameters...);
    return flash_attention(std::get<0>(all), std::get<1>(all), std::get<3>(all), std::get<6>(all),
                           std::get<8>(all));
  }
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_attention_backward(
    const at::Tensor&, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor&, const at::Tensor&, const at::Tensor& query_offsets, const at::Tensor&,
    c10::SymInt, c10::SymInt longest, double, bool causal, const at::Tensor&, const at::Tensor&,
    std::optional<double>, std::optional<c10::SymInt>, std::optional<c10::SymInt>) {
  if (auto* rehearsal = kernels::Rehearsal::current())
    rehearsal->attention(flash_work(query, key,
                                    query_offsets.defined() ? Maybe(query_offsets) : std::nullopt,
                                    longest.expect_int(), causal, /*backward=*/true));
  return {at::empty(query.sizes(), query.options()), at::empty(key.sizes(), key.options()),
          at::empty(value.sizes(), value.options())};
}

void record_stream(at::Tensor&, at::Stream) {}

at::Tensor& same_shape_out(const at::Tensor& self, at::Tensor& out) {
  out.resize_(self.sizes());
  return out;
}
at::Tensor& broadcast_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  out.resize_(at::infer_size(self.sizes(), other.sizes()));
  return out;
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  const auto sizes = at::infer_size(at::infer_size(condition.sizes(), self.sizes()), other.sizes());
  return at::empty(sizes, self.options().dtype(at::result_type(self, other)));
}

// Attention as a GPU's fused kernels compute it: no scores are kept. [batch, heads, tokens, dim],
// of which results lie as [batch, tokens, heads, dim].
struct FusedAttention : torch::autograd::Function<FusedAttention> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static at::Tensor like(const at::Tensor& x) {
    return at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options()).transpose(1, 2);
  }
  static void tell(const at::Tensor& q, const at::Tensor& k, bool causal, bool backward) {
    auto* rehearsal = kernels::Rehearsal::current();
    if (!rehearsal) return;
    const auto bytes = static_cast<std::int64_t>(2 * q.nbytes() + 2 * k.nbytes());
    rehearsal->attention({.queries = q.size(0) * q.size(2),
                          .keys = k.size(0) * k.size(2),
                          .heads = q.size(1),
                          .dim = q.size(3),
                          .spans = q.size(0),
                          .longest_key = k.size(2),
                          .bytes = backward ? 2 * bytes : bytes,
                          .causal = causal,
                          .backward = backward,
                          .flash = true});
  }

  static at::Tensor forward(Context* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, bool causal) {
    const at::Tensor mixed = like(q);
    const at::Tensor sums =
        at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
    tell(q, k, causal, /*backward=*/false);
    context->save_for_backward({q, k, v, mixed, sums});
    context->saved_data["causal"] = causal;
    return mixed;
  }
  static Variables backward(Context* context, Variables) {
    const Variables saved = context->get_saved_variables();
    tell(saved[0], saved[1], context->saved_data["causal"].toBool(), /*backward=*/true);
    return {like(saved[0]), like(saved[1]), like(saved[2]), {}};
  }
};

// Whether torch's fused kernel for the CPU takes it; otherwise all scores are kept.
bool cpu_fuses(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Maybe& mask,
               double dropout) {
  return dropout == 0 && q.size(1) == k.size(1) && q.size(0) == k.size(0) &&
         q.size(-1) == k.size(-1) && q.size(-1) == v.size(-1) && q.size(2) > 0 && k.size(2) > 0 &&
         q.stride(-1) == 1 && k.stride(-1) == 1 && v.stride(-1) == 1 &&
         (!mask || !mask->defined() || !mask->requires_grad());
}

at::Tensor scaled_dot_product_attention(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const Maybe& mask, double dropout,
                                        bool causal, std::optional<double> scale, bool gqa) {
  if (kernels::acts_as_cpu(q) && !cpu_fuses(q, k, v, mask, dropout))
    return std::get<0>(
        at::_scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, {}, scale, gqa));
  return FusedAttention::apply(q, k, v, causal);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("index_select", &index_select);
  library.impl("embedding_dense_backward", &embedding_dense_backward);
  library.impl("native_layer_norm", &native_layer_norm);
  library.impl("native_layer_norm_backward", &native_layer_norm_backward);
  library.impl("_fused_rms_norm", &fused_rms_norm);
  library.impl("_fused_rms_norm_backward", &fused_rms_norm_backward);
  library.impl("native_dropout", &native_dropout);
  library.impl("native_dropout_backward", &native_dropout_backward);
  library.impl("convolution", &convolution);
  library.impl("convolution_backward", &convolution_backward);
  library.impl("_flash_attention_forward",
               &FlashAttention<at::_ops::_flash_attention_forward::schema>::run);
  library.impl("_flash_attention_backward", &flash_attention_backward);
  library.impl("mm.dtype_out", &mm_of_dtype);
  library.impl("record_stream", &record_stream);
  library.impl("where.self", &where);
  library.impl("abs.out", &same_shape_out);
  library.impl("logical_not.out", &same_shape_out);
  library.impl("logical_and.out", &broadcast_out);
  library.impl("logical_or.out", &broadcast_out);
  library.impl("scaled_dot_product_attention", &scaled_dot_product_attention);
}

TORCH_LIBRARY_IMPL(aten, AutogradMeta, library) {
  library.impl("scaled_dot_product_attention", &scaled_dot_product_attention);
}

}  // namespace floe::plan
