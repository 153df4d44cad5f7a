#include "floe/kernels/kernels.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <atomic>

#include "floe/core/error.h"
#include "floe/kernels/rehearsal.h"

#ifdef FLOE_CUDA
#include <ATen/cuda/CUDAContext.h>

#include "floe/kernels/on_device.h"
#endif

namespace floe::kernels {

void missing() {
  throw Error("this build has no CUDA kernels; build with FLOE_CUDA=1 ./run build");
}
namespace {

std::atomic<bool> allowed{true};  // read by autograd's threads too

}  // namespace

void allow(bool on) { allowed = on; }
bool are_allowed() { return allowed; }

namespace {

// Of a GPU that has the kernels, or rehearsed as such.
bool on_gpu(const at::Tensor& tensor) {
#ifdef FLOE_CUDA
  if (tensor.is_cuda()) return true;
#endif
  return is_rehearsed_gpu(tensor);
}

}  // namespace

bool usable(std::initializer_list<at::Tensor> tensors) {
  if (!allowed) return false;
  const at::Tensor* first = nullptr;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (!first) {
      first = &tensor;
      const auto dtype = tensor.scalar_type();
      if (!on_gpu(tensor) || (dtype != at::kFloat && dtype != at::kHalf && dtype != at::kBFloat16))
        return false;
    }
    const bool aligned = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
    if (tensor.device() != first->device() || tensor.scalar_type() != first->scalar_type() ||
        !tensor.is_contiguous() || (!aligned && tensor.numel() > 1))
      return false;
  }
  return first && !at::autocast::is_autocast_enabled(at::kCUDA);
}

bool norm_fits(const at::Tensor& x) {
  constexpr std::int64_t kMostPacks = 2048;
#ifdef FLOE_CUDA
  static_assert(kMostPacks == kMostNormPacks);
#endif
  const std::int64_t dim = x.size(-1), pack = 16 / static_cast<std::int64_t>(x.element_size());
  return dim > 0 && dim % pack == 0 && dim / pack <= kMostPacks;
}

std::int64_t norm_strips(const at::Tensor& x) {
  // Four blocks on each of 132 multiprocessors, unless that leaves a strip hardly any rows; a block
  // has 512 bytes of a row.
  constexpr std::int64_t kBlocks = 528, kBlockBytes = 512, kLeastRows = 64;
  const std::int64_t dim = x.size(-1),
                     row_bytes = dim * static_cast<std::int64_t>(x.element_size());
  const std::int64_t across = (row_bytes + kBlockBytes - 1) / kBlockBytes;
  const std::int64_t rows = x.numel() / dim;
  return std::clamp<std::int64_t>((rows + kLeastRows - 1) / kLeastRows, 1,
                                  std::max<std::int64_t>(kBlocks / across, 1));
}

#ifdef FLOE_CUDA
namespace {

const void* read(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}
void* write(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}
float* write_floats(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

NormShape norm_shape(const at::Tensor& x, double eps, bool centred) {
  const std::int64_t dim = x.size(-1);
  return {x.numel() / dim, dim, static_cast<float>(eps), centred};
}

}  // namespace

bool is_hopper(const at::Device& device) {
  return device.is_cuda() && at::cuda::getDeviceProperties(device.index())->major == 9;
}

at::Tensor quick_gelu(const at::Tensor& x) {
  if (x.is_meta()) return rehearsed::quick_gelu(x);
  at::Tensor y = at::empty_like(x);
  if (x.numel() > 0) launch_quick_gelu(type_of(x), read(x), write(y), x.numel(), OnDevice(x));
  return y;
}

at::Tensor gelu_backward(const at::Tensor& grad, const at::Tensor& u) {
  if (u.is_meta()) return rehearsed::gelu_backward(grad, u);
  at::Tensor input_grad = at::empty_like(u);
  if (u.numel() > 0)
    launch_gelu_backward(type_of(u), read(grad), read(u), write(input_grad), u.numel(),
                         OnDevice(u));
  return input_grad;
}

at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up) {
  if (gate.is_meta()) return rehearsed::gated_silu(gate, up);
  at::Tensor out = at::empty_like(gate);
  if (gate.numel() > 0)
    launch_gated_silu(type_of(gate), read(gate), read(up), write(out), gate.numel(),
                      OnDevice(gate));
  return out;
}

std::pair<at::Tensor, at::Tensor> gated_silu_backward(const at::Tensor& grad,
                                                      const at::Tensor& gate,
                                                      const at::Tensor& up) {
  if (gate.is_meta()) return rehearsed::gated_silu_backward(grad, gate, up);
  at::Tensor gate_grad = at::empty_like(gate), up_grad = at::empty_like(up);
  if (gate.numel() > 0)
    launch_gated_silu_backward(type_of(gate), read(grad), read(gate), read(up), write(gate_grad),
                               write(up_grad), gate.numel(), OnDevice(gate));
  return {gate_grad, up_grad};
}

at::Tensor gated_gelu(const at::Tensor& u, const at::Tensor& gate) {
  if (u.is_meta()) return rehearsed::gated_gelu(u, gate);
  at::Tensor out = at::empty_like(u);
  if (u.numel() > 0)
    launch_gated_gelu(type_of(u), read(u), read(gate), write(out), u.numel(), OnDevice(u));
  return out;
}

GatedGeluGrad gated_gelu_backward_(const at::Tensor& grad, const at::Tensor& u,
                                   const at::Tensor& gate) {
  if (u.is_meta()) return rehearsed::gated_gelu_backward_(grad, u);
  GatedGeluGrad result{at::empty_like(u), {}};
  const at::Tensor partial_sums = at::empty({kPartials}, u.options().dtype(at::kFloat));
  launch_gated_gelu_backward(type_of(u), read(grad), read(u), read(gate), write(grad),
                             write(result.out), write_floats(partial_sums), u.numel(), OnDevice(u));
  result.factor = partial_sums.sum().view({1});
  return result;
}

Normed layer_norm(const at::Tensor& x, const at::Tensor& added, const at::Tensor& weight,
                  const at::Tensor& bias, const at::Tensor& sum_bias, const NormOptions& options) {
  if (x.is_meta()) return rehearsed::layer_norm(x, added, options);
  const NormShape shape = norm_shape(x, options.eps, options.centred);
  Normed result;
  result.out = at::empty_like(x);
  if (added.defined()) result.sum = at::empty_like(x);
  if (options.statistics) {
    const auto floats = x.options().dtype(at::kFloat);
    if (options.centred) result.mean = at::empty({shape.rows, 1}, floats);
    result.rstd = at::empty({shape.rows, 1}, floats);
  }
  if (options.codes) {
    result.codes = at::empty({shape.rows, shape.dim}, x.options().dtype(at::kFloat8_e4m3fn));
    result.code_scales = at::empty({shape.rows}, x.options().dtype(at::kFloat));
  }
  if (options.kept)
    result.kept = at::empty({shape.rows, shape.dim}, x.options().dtype(at::kFloat8_e4m3fn));
  if (shape.rows > 0)
    launch_layer_norm(type_of(x), shape, read(x), read(added), read(weight), read(bias),
                      read(sum_bias), write(result.sum), write(result.out),
                      write_floats(result.mean), write_floats(result.rstd), write(result.codes),
                      write_floats(result.code_scales), write(result.kept), OnDevice(x));
  return result;
}

NormGrads layer_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& mean,
                              const at::Tensor& rstd, const at::Tensor& weight,
                              const at::Tensor& added, bool want_input, bool want_weights) {
  const bool centred = mean.defined();
  if (x.is_meta())
    return rehearsed::layer_norm_backward(grad, x, weight, added, centred, want_input,
                                          want_weights);
  const NormShape shape = norm_shape(x, 0, centred);
  NormGrads grads;
  if (want_input) {
    const bool kept = x.scalar_type() == at::kFloat8_e4m3fn;
    grads.input = at::empty_like(kept ? grad : x);
    if (shape.rows > 0)
      launch_layer_norm_backward(type_of(grad), shape, read(grad), read(x),
                                 static_cast<const float*>(read(mean)),
                                 rstd.const_data_ptr<float>(), read(weight), read(added),
                                 write(grads.input), kept, OnDevice(x));
  }
  if (want_weights) {
    const std::int64_t strips = norm_strips(x);
    const at::Tensor partials = at::empty({strips, 2, shape.dim}, x.options().dtype(at::kFloat));
    grads.weight = at::empty_like(weight);
    if (centred) grads.bias = at::empty_like(weight);
    launch_norm_weight_grads(type_of(x), shape, read(grad), read(x),
                             static_cast<const float*>(read(mean)), rstd.const_data_ptr<float>(),
                             write_floats(partials), static_cast<int>(strips), write(grads.weight),
                             write(grads.bias), OnDevice(x));
  }
  return grads;
}

void rotate_(const at::Tensor& x, const at::Tensor& also, const at::Tensor& cos,
             const at::Tensor& sin, bool back) {
  if (x.is_meta()) return rehearsed::rotate_(x, also, cos);
  RotaryShape shape{.tokens = x.size(0), .dim = cos.size(-1)};
  shape.first = {x.size(1), x.stride(0), x.stride(1)};
  if (also.defined()) shape.second = {also.size(1), also.stride(0), also.stride(1)};
  launch_rotary(type_of(x), shape, write(x), write(also), read(cos), read(sin), back, OnDevice(x));
}

void cross_entropy_(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                    double scale, double z_loss, bool with_gradient, const RowLosses& out) {
  if (logits.is_meta()) return rehearsed::cross_entropy_(logits, with_gradient);
  const LossShape shape{logits.size(0), logits.size(1), static_cast<float>(scale),
                        static_cast<float>(z_loss), with_gradient};
  launch_cross_entropy(type_of(logits), shape, write(logits),
                       targets.const_data_ptr<std::int64_t>(), weights.const_data_ptr<float>(),
                       write_floats(out.losses), write_floats(out.weighted), OnDevice(logits));
}

#else
namespace {

void require_rehearsed(const at::Tensor& tensor) {
  if (!is_rehearsed(tensor)) missing();
}

}  // namespace

bool is_hopper(const at::Device&) { return false; }
at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up) {
  require_rehearsed(gate);
  return rehearsed::gated_silu(gate, up);
}
std::pair<at::Tensor, at::Tensor> gated_silu_backward(const at::Tensor& grad,
                                                      const at::Tensor& gate,
                                                      const at::Tensor& up) {
  require_rehearsed(gate);
  return rehearsed::gated_silu_backward(grad, gate, up);
}
at::Tensor quick_gelu(const at::Tensor& x) {
  require_rehearsed(x);
  return rehearsed::quick_gelu(x);
}
at::Tensor gated_gelu(const at::Tensor& u, const at::Tensor& gate) {
  require_rehearsed(u);
  return rehearsed::gated_gelu(u, gate);
}
GatedGeluGrad gated_gelu_backward_(const at::Tensor& grad, const at::Tensor& u, const at::Tensor&) {
  require_rehearsed(u);
  return rehearsed::gated_gelu_backward_(grad, u);
}
Normed layer_norm(const at::Tensor& x, const at::Tensor& added, const at::Tensor&,
                  const at::Tensor&, const at::Tensor&, const NormOptions& options) {
  require_rehearsed(x);
  return rehearsed::layer_norm(x, added, options);
}
NormGrads layer_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& mean,
                              const at::Tensor&, const at::Tensor& weight, const at::Tensor& added,
                              bool want_input, bool want_weights) {
  require_rehearsed(x);
  return rehearsed::layer_norm_backward(grad, x, weight, added, mean.defined(), want_input,
                                        want_weights);
}
at::Tensor gelu_backward(const at::Tensor& grad, const at::Tensor& u) {
  require_rehearsed(u);
  return rehearsed::gelu_backward(grad, u);
}
void rotate_(const at::Tensor& x, const at::Tensor& also, const at::Tensor& cos, const at::Tensor&,
             bool) {
  require_rehearsed(x);
  rehearsed::rotate_(x, also, cos);
}
void cross_entropy_(const at::Tensor& logits, const at::Tensor&, const at::Tensor&, double, double,
                    bool with_gradient, const RowLosses&) {
  require_rehearsed(logits);
  rehearsed::cross_entropy_(logits, with_gradient);
}

#endif

}  // namespace floe::kernels
