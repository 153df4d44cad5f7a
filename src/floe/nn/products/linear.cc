#include "floe/nn/products/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>
#include <utility>
#include <vector>

#include "floe/kernels/eight_bit/fp8_product.h"
#include "floe/nn/activations/kept_products.h"
#include "floe/nn/boundary.h"
#include "floe/nn/fused.h"
#include "floe/nn/products/gradient_place.h"
#include "floe/nn/products/rows.h"

namespace floe::nn {
namespace {

thread_local SharedRows* shared_rows = nullptr;

}  // namespace

// The codes of x [..., in] as rows.
struct RowsOf {
  static kernels::CodedRows get(const at::Tensor& x, at::ScalarType dtype) {
    SharedRows* empty = nullptr;
    for (SharedRows* shared = shared_rows; shared; shared = shared->outer_) {
      if (!shared->x_.is_same(x) || shared->version_ != version_of(x)) continue;
      if (shared->codes_.defined()) return {shared->codes_, shared->scales_};
      if (!empty) empty = shared;
    }
    kernels::CodedRows made = kernels::to_coded_rows(rows_of(x), dtype, {});
    if (empty) std::tie(empty->codes_, empty->scales_) = parts(made);
    return made;
  }
  // Somebody may write into x while its codes are shared.
  static std::int64_t version_of(const at::Tensor& x) {
    return x.is_inference() ? -1 : x._version();
  }
  static std::pair<at::Tensor, at::Tensor> parts(kernels::CodedRows rows) {
    return {std::move(rows.codes), std::move(rows.scales)};
  }
};

SharedRows::SharedRows(const at::Tensor& x) : SharedRows(x, {}, {}) {}

SharedRows::SharedRows(const at::Tensor& x, at::Tensor codes, at::Tensor scales)
    : x_(x),
      version_(RowsOf::version_of(x)),
      codes_(std::move(codes)),
      scales_(std::move(scales)),
      outer_(std::exchange(shared_rows, this)) {}

SharedRows::~SharedRows() { shared_rows = outer_; }

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Of gradients on their way through a product. Each row has a scale of its own, so the range of
// e5m2 is not needed: e4m3 reaches down to 2⁻⁹/448 of a row's largest, and its third bit of
// mantissa halves the error, which bench/eight_bit.py measures on real gradients.
constexpr at::ScalarType kGradientCodes = at::kFloat8_e4m3fn;
constexpr at::ScalarType kInputCodes = at::kFloat8_e4m3fn;

// Torch's place for what a backend knows of a tensor; copies of the tensor's metadata share it.
struct AttachedCodes : c10::BackendMeta {
  explicit AttachedCodes(WeightCodes what) : codes(std::move(what)) {}
  WeightCodes codes;
};

}  // namespace

at::Tensor coded_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  weight.const_data_ptr();  // of a unit that is released: the error that says so
  return kernels::product(RowsOf::get(x, kInputCodes), weight, codes_of(weight)->scales, bias,
                          x.scalar_type());
}

namespace {

// slope as rows of codes · weight.
at::Tensor back_through(const kernels::CodedRows& slope, const at::Tensor& weight,
                        at::ScalarType dtype) {
  weight.const_data_ptr();
  const WeightCodes& own = *codes_of(weight);
  at::Tensor transposed = own.transposed;
  if (!transposed.defined()) {
    transposed = at::empty({weight.size(1), weight.size(0)}, weight.options());
    kernels::transpose_bytes(weight.view(at::kByte), transposed.view(at::kByte));
  }
  return kernels::product(slope, transposed, {}, {}, dtype);
}

}  // namespace

at::Tensor coded_product_back(const at::Tensor& slope, const at::Tensor& weight) {
  weight.const_data_ptr();
  return back_through(kernels::to_coded_rows(slope, kGradientCodes, codes_of(weight)->scales),
                      weight, slope.scalar_type());
}

namespace {

// The same, unless a rerun has kept it.
at::Tensor product_of(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return keep_product("floe::fp8_product", x, weight,
                      [&] { return coded_product(x, weight, bias); });
}

struct CodedLinear : torch::autograd::Function<CodedLinear> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& weight,
                          const MaybeTensor& maybe_bias) {
    const at::Tensor bias = tensor_of(maybe_bias);
    context->saved_data["trains_x"] = x.requires_grad();
    context->saved_data["trains_bias"] = bias.defined() && bias.requires_grad();
    // Refers to the parameter, so that the engine gathers it for backward; nothing else is read.
    if (x.requires_grad()) context->save_for_backward({weight});
    // No view, which could not be changed in place: a rotary step does that.
    return at::_unsafe_view(product_of(x, weight, bias), with_columns(x, weight.size(0)));
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor slope = rows_of(grads[0]);
    at::Tensor x_grad, bias_grad;
    if (context->saved_data["trains_x"].toBool()) {
      const at::Tensor weight = context->get_saved_variables()[0];
      x_grad = coded_product_back(slope, weight).view(with_columns(grads[0], weight.size(1)));
    }
    if (context->saved_data["trains_bias"].toBool()) bias_grad = slope.sum(0);
    return {x_grad, {}, bias_grad};
  }
};

// A weight whose gradient has a place, see Note [Gradients in their place]. As at::linear, bit for
// bit, but that a wide place has one rounding less.
struct PlacedLinear : torch::autograd::Function<PlacedLinear> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& weight,
                          const MaybeTensor& maybe_bias) {
    const at::Tensor bias = tensor_of(maybe_bias);
    context->saved_data["trains_bias"] = bias.defined() && bias.requires_grad();
    keep_gradient_place(*context, weight);
    context->save_for_backward(x.requires_grad() ? variable_list{x, weight} : variable_list{x});
    return at::linear(x, weight, some(bias));
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor slope = rows_of(grads[0]);
    at::Tensor x_grad, bias_grad;
    if (saved.size() > 1) x_grad = slope.mm(saved[1]).view(x.sizes());
    if (context->saved_data["trains_bias"].toBool()) bias_grad = slope.sum(0);
    return {x_grad, weight_gradient(*context, slope, rows_of(x)), bias_grad};
  }
};

bool goes_to_its_place(const at::Tensor& x, const at::Tensor& weight) {
  if (!at::GradMode::is_enabled() || !weight.requires_grad() || x.dim() < 2 ||
      x.scalar_type() != weight.scalar_type() ||
      at::autocast::is_autocast_enabled(x.is_cpu() ? at::kCPU : at::kCUDA))
    return false;
  const GradientPlacePtr place = gradient_place(weight);
  return place && place->takes(x.scalar_type());
}

struct CodedGeluMlp : torch::autograd::Function<CodedGeluMlp> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& up,
                          const MaybeTensor& up_bias, const Variable& down,
                          const MaybeTensor& down_bias, bool with_slopes) {
    const at::Tensor inner = product_of(x, up, tensor_of(up_bias));
    const auto gelu = kernels::gelu_to_coded_rows(inner, with_slopes);
    const at::Tensor y = keep_product("floe::fp8_product", inner, down, [&] {
      down.const_data_ptr();
      return kernels::product(gelu.rows, down, codes_of(down)->scales, tensor_of(down_bias),
                              x.scalar_type());
    });
    if (with_slopes) context->save_for_backward({gelu.slopes, up, down});
    return at::_unsafe_view(y, with_columns(x, down.size(0)));
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &slopes = saved[0], &up = saved[1], &down = saved[2];
    const auto dtype = grads[0].scalar_type();
    const at::Tensor inner_grad = coded_product_back(rows_of(grads[0]), down);
    const auto rows = kernels::gelu_slopes_to_coded_rows(inner_grad, slopes, codes_of(up)->scales);
    return {
        back_through(rows, up, dtype).view(with_columns(grads[0], up.size(1))), {}, {}, {}, {}, {}};
  }
};

}  // namespace

void attach_codes(const at::Tensor& weight, WeightCodes codes) {
  weight.unsafeGetTensorImpl()->set_backend_meta(
      c10::make_intrusive<AttachedCodes>(std::move(codes)));
}

void detach_codes(const at::Tensor& weight) {
  if (codes_of(weight)) weight.unsafeGetTensorImpl()->set_backend_meta(nullptr);
}

const WeightCodes* codes_of(const at::Tensor& weight) {
  const auto* attached =
      dynamic_cast<const AttachedCodes*>(weight.unsafeGetTensorImpl()->get_backend_meta());
  return attached ? &attached->codes : nullptr;
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (goes_to_its_place(x, weight)) return PlacedLinear::apply(x, weight, some(bias));
  if (!codes_of(weight)) return at::linear(x, weight, some(bias));
  return CodedLinear::apply(x, weight, some(bias));
}

at::Tensor coded_gelu_mlp(const at::Tensor& x, const at::Tensor& up, const at::Tensor& up_bias,
                          const at::Tensor& down, const at::Tensor& down_bias) {
  const bool with_slopes = at::GradMode::is_enabled() && x.requires_grad();
  return CodedGeluMlp::apply(x, up, some(up_bias), down, some(down_bias), with_slopes);
}

void add_linear_(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& weight) {
  if (codes_of(weight))
    sum.add_(product_of(x, weight, {}));
  else
    sum.addmm_(x, weight.t());
}

void add_quick_gelu_linear_(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& weight) {
  const WeightCodes* own = codes_of(weight);
  if (!own) return add_linear_(sum, quick_gelu(x), weight);
  weight.const_data_ptr();
  sum.add_(kernels::product(kernels::quick_gelu_to_coded_rows(x), weight, own->scales, {},
                            sum.scalar_type()));
}

}  // namespace floe::nn
