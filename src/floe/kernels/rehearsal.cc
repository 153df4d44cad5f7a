#include "floe/kernels/rehearsal.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <utility>

namespace floe::kernels {
namespace {

thread_local Rehearsal* listening = nullptr;
thread_local bool in_host_memory = false;

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

AttentionWork attention_work(const Qkv& qkv, const AttentionRule& rule, bool backward) {
  const std::int64_t bytes =
      2 * bytes_of(qkv.q) + bytes_of(qkv.k) + bytes_of(qkv.v);  // and what comes of it
  return {.queries = qkv.q.size(0),
          .keys = qkv.k.size(0),
          .heads = qkv.q.size(1),
          .dim = qkv.q.size(2),
          .spans = rule.query_offsets.numel() - 1,
          .longest_key = rule.longest_key,
          .bytes = backward ? 2 * bytes + bytes_of(qkv.q) : bytes,
          .causal = rule.causal,
          .backward = backward};
}

}  // namespace

Rehearsal* Rehearsal::current() { return listening; }

RehearsalScope::RehearsalScope(Rehearsal& rehearsal)
    : before_(std::exchange(listening, &rehearsal)) {}
RehearsalScope::~RehearsalScope() { listening = before_; }

RehearsedHostMemory::RehearsedHostMemory() : before_(std::exchange(in_host_memory, true)) {}
RehearsedHostMemory::~RehearsedHostMemory() { in_host_memory = before_; }
bool RehearsedHostMemory::on() { return in_host_memory; }

namespace rehearsed {

at::Tensor quick_gelu(const at::Tensor& x) {
  at::Tensor y = at::empty_like(x);
  listening->pass("quick_gelu", 2 * bytes_of(x));
  return y;
}

at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor out = at::empty_like(gate);
  listening->pass("gated_silu", 2 * bytes_of(gate) + bytes_of(up));
  return out;
}

std::pair<at::Tensor, at::Tensor> gated_silu_backward(const at::Tensor& grad,
                                                      const at::Tensor& gate,
                                                      const at::Tensor& up) {
  std::pair<at::Tensor, at::Tensor> grads{at::empty_like(gate), at::empty_like(up)};
  listening->pass("gated_silu_backward", bytes_of(grad) + 2 * bytes_of(gate) + 2 * bytes_of(up));
  return grads;
}

at::Tensor gelu_backward(const at::Tensor& grad, const at::Tensor& u) {
  at::Tensor input_grad = at::empty_like(u);
  listening->pass("gelu_backward", bytes_of(grad) + 2 * bytes_of(u));
  return input_grad;
}

at::Tensor gated_gelu(const at::Tensor& u, const at::Tensor&) {
  at::Tensor out = at::empty_like(u);
  listening->pass("gelu", 2 * bytes_of(u));
  return out;
}

GatedGeluGrad gated_gelu_backward_(const at::Tensor& grad, const at::Tensor& u) {
  GatedGeluGrad result{at::empty_like(u), at::empty({1}, u.options().dtype(at::kFloat))};
  listening->pass("gated_gelu_backward", 2 * bytes_of(grad) + 2 * bytes_of(u));
  return result;
}

Normed layer_norm(const at::Tensor& x, const at::Tensor& added, const NormOptions& options) {
  const std::int64_t dim = x.size(-1), rows = x.numel() / dim;
  const auto floats = x.options().dtype(at::kFloat);
  Normed result;
  result.out = at::empty_like(x);
  if (added.defined()) result.sum = at::empty_like(x);
  if (options.statistics) {
    if (options.centred) result.mean = at::empty({rows, 1}, floats);
    result.rstd = at::empty({rows, 1}, floats);
  }
  if (options.codes) {
    result.codes = at::empty({rows, dim}, x.options().dtype(at::kFloat8_e4m3fn));
    result.code_scales = at::empty({rows}, floats);
  }
  if (options.kept) result.kept = at::empty({rows, dim}, x.options().dtype(at::kFloat8_e4m3fn));
  listening->pass("norm", 2 * bytes_of(x) + 2 * bytes_of(added) + bytes_of(result.codes) +
                              bytes_of(result.kept));
  return result;
}

NormGrads layer_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                              const at::Tensor& added, bool centred, bool want_input,
                              bool want_weights) {
  NormGrads grads;
  if (want_input) {
    grads.input = at::empty_like(x.scalar_type() == at::kFloat8_e4m3fn ? grad : x);
    listening->pass("norm_backward", 2 * bytes_of(grad) + bytes_of(x) + bytes_of(added));
  }
  if (want_weights) {
    grads.weight = at::empty_like(weight);
    if (centred) grads.bias = at::empty_like(weight);
    const at::Tensor partials =
        at::empty({norm_strips(x), 2, x.size(-1)}, x.options().dtype(at::kFloat));
    listening->pass("norm_weights", bytes_of(grad) + bytes_of(x));
  }
  return grads;
}

void rotate_(const at::Tensor& x, const at::Tensor& also, const at::Tensor& cos) {
  const auto turned = bytes_of(x) + (also.defined() ? bytes_of(also) : 0);
  listening->pass("rotary", 2 * turned + 2 * bytes_of(cos));
}

void cross_entropy_(const at::Tensor& logits, bool with_gradient) {
  // The row is read twice; the second time it becomes the gradient.
  listening->pass("cross_entropy", (with_gradient ? 3 : 1) * bytes_of(logits));
}

Attended attention(const Qkv& qkv, const AttentionRule& rule) {
  const at::Tensor& q = qkv.q;
  Attended result{at::empty(q.sizes(), q.options()),
                  at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat))};
  listening->attention(attention_work(qkv, rule, /*backward=*/false));
  return result;
}

void attention_backward(const Qkv& qkv, const AttentionRule& rule) {
  const at::Tensor delta =
      at::empty({qkv.q.size(1), qkv.q.size(0)}, qkv.q.options().dtype(at::kFloat));
  listening->attention(attention_work(qkv, rule, /*backward=*/true));
}

void from_eight_bit(const at::Tensor& slices, const at::Tensor& out) {
  listening->pass("from_eight_bit", bytes_of(slices) + bytes_of(out));
}

CodedRows coded_rows(const at::Tensor& values, at::ScalarType dtype) {
  CodedRows rows{at::empty(values.sizes(), values.options().dtype(dtype)),
                 at::empty({values.size(0)}, values.options().dtype(at::kFloat))};
  listening->pass("coded_rows", bytes_of(values) + bytes_of(rows.codes));
  return rows;
}

at::Tensor product(const CodedRows& rows, const at::Tensor& codes, at::ScalarType dtype) {
  at::Tensor result =
      at::empty({rows.codes.size(0), codes.size(0)}, rows.scales.options().dtype(dtype));
  listening->coded_product(rows.codes.size(0), codes.size(0), codes.size(1));
  return result;
}

void separate(const at::Tensor& slices, const at::Tensor& codes) {
  listening->pass("separate", bytes_of(slices) + bytes_of(codes));
}

void transpose_bytes(const at::Tensor& matrix) {
  listening->pass("transpose", 2 * bytes_of(matrix));
}

}  // namespace rehearsed
}  // namespace floe::kernels
