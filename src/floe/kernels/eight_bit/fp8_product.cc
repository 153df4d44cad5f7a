#include "floe/kernels/eight_bit/fp8_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>

#include <optional>
#include <utility>

#ifdef FLOE_CUDA
#include <ATen/cuda/CUDAContext.h>

#include "floe/kernels/eight_bit/fp8_product_launch.h"
#include "floe/kernels/on_device.h"
#endif

#include "floe/core/str.h"
#include "floe/kernels/kernels.h"
#include "floe/kernels/rehearsal.h"

namespace floe::kernels {
namespace {

// Partial sums stay in the tensor cores' own registers, which have fewer bits than fp32: half as
// long as products that move them out in between, and an error far below that of the codes.
constexpr bool kFastAccumulation = true;

// What products on a GPU give.
constexpr at::ScalarType kProductDtype = at::kBFloat16;

std::string needs_product_dtype(at::ScalarType dtype) {
  return str(
      "needs mixed_precision.param bf16 on a GPU, whose 8-bit products give nothing else, not ",
      c10::toString(dtype));
}

at::Tensor product_on_cpu(const CodedRows& rows, const at::Tensor& codes, const at::Tensor& scales,
                          const at::Tensor& bias, at::ScalarType dtype) {
  at::Tensor sums = rows.codes.to(at::kFloat).mm(codes.to(at::kFloat).t());
  sums.mul_(rows.scales.unsqueeze(1));
  if (scales.defined()) sums.mul_(scales);
  if (bias.defined()) sums.add_(bias);
  return sums.to(dtype);
}

#ifdef FLOE_CUDA
CodedRows coded_rows_on_cuda(const at::Tensor& values, at::ScalarType dtype,
                             const at::Tensor& factors, CodedStep step,
                             const at::Tensor& slopes = {}) {
  CodedRows rows{at::empty(values.sizes(), values.options().dtype(dtype)),
                 at::empty({values.size(0)}, values.options().dtype(at::kFloat))};
  const CodedShape shape{values.size(0), values.size(1), dtype == at::kFloat8_e5m2, step};
  if (values.numel() > 0)
    launch_coded_rows(type_of(values), shape, values.const_data_ptr(),
                      factors.defined() ? factors.const_data_ptr<float>() : nullptr,
                      slopes.defined() ? slopes.mutable_data_ptr() : nullptr,
                      rows.codes.mutable_data_ptr(), rows.scales.mutable_data_ptr<float>(),
                      OnDevice(values));
  return rows;
}

void scales_on_cuda(const EightBitSlices& layout, const at::Tensor& slices,
                    const at::Tensor& scales) {
  const OnDevice device(scales);
  const auto count = static_cast<std::int64_t>(layout.matrices.size());
  for (std::int64_t first = 0; first < count; first += EightBitJob::kMostMatrices) {
    const EightBitJob job = job_of(layout, at::kFloat8_e4m3fn, first);
    const auto next = static_cast<std::size_t>(first + job.num_matrices);
    const std::int64_t end =
        next < layout.matrices.size() ? layout.matrices[next].rows_before : layout.num_rows;
    launch_row_scales(job, end, slices.const_data_ptr(), scales.mutable_data_ptr<float>(), device);
  }
}

void transpose_on_cuda(const at::Tensor& matrix, const at::Tensor& out) {
  launch_transpose_bytes(matrix.const_data_ptr(), out.mutable_data_ptr(), matrix.size(0),
                         matrix.size(1), OnDevice(matrix));
}
#else
CodedRows coded_rows_on_cuda(const at::Tensor&, at::ScalarType, const at::Tensor&, CodedStep,
                             const at::Tensor& = {}) {
  missing();
}
void scales_on_cuda(const EightBitSlices&, const at::Tensor&, const at::Tensor&) { missing(); }
void transpose_on_cuda(const at::Tensor&, const at::Tensor&) { missing(); }
#endif

}  // namespace

std::string why_no_fp8_products(std::string_view gpu, int major, int minor, at::ScalarType dtype) {
  if (dtype != kProductDtype) return needs_product_dtype(dtype);
  constexpr std::pair kFirst{8, 9};
  if (std::pair(major, minor) >= kFirst) return "";
  return str("needs a GPU of compute capability 8.9 or later (Ada, Hopper), and ", gpu, " has ",
             major, ".", minor);
}

std::string why_no_fp8_products(at::Device device, at::ScalarType dtype) {
  if (device.is_cpu()) return "";
  if (dtype != kProductDtype) return needs_product_dtype(dtype);
  if (is_rehearsed(device)) return "";
#ifdef FLOE_CUDA
  const auto* properties = at::cuda::getDeviceProperties(device.index());
  return why_no_fp8_products(properties->name, properties->major, properties->minor, dtype);
#else
  return str("needs CUDA kernels for ", device.str(), ", which this build does not have");
#endif
}

CodedRows to_coded_rows(const at::Tensor& values, at::ScalarType dtype, const at::Tensor& factors) {
  const at::Tensor rows = values.contiguous();
  if (is_rehearsed(rows)) return rehearsed::coded_rows(rows, dtype);
  if (!rows.is_cpu()) return coded_rows_on_cuda(rows, dtype, factors, CodedStep::none);
  at::Tensor floats = rows.to(at::kFloat);
  if (factors.defined()) floats = floats * factors;
  auto [codes, scales] = to_eight_bit(floats, dtype);
  return {codes.view(dtype), scales};
}

CodedRows quick_gelu_to_coded_rows(const at::Tensor& x) {
  constexpr auto kDtype = at::kFloat8_e4m3fn;
  if (is_rehearsed(x)) return rehearsed::coded_rows(x, kDtype);
  if (x.is_cpu()) return to_coded_rows(x * at::sigmoid(1.702 * x), kDtype, {});
  return coded_rows_on_cuda(x.contiguous(), kDtype, {}, CodedStep::quick_gelu);
}

GeluRows gelu_to_coded_rows(const at::Tensor& x, bool with_slopes) {
  constexpr auto kDtype = at::kFloat8_e4m3fn;
  const at::Tensor rows = x.contiguous();
  GeluRows result;
  if (with_slopes) result.slopes = at::empty(rows.sizes(), rows.options().dtype(at::kByte));
  if (is_rehearsed(x)) {
    result.rows = rehearsed::coded_rows(rows, kDtype);
    return result;
  }
  if (!x.is_cpu()) {
    result.rows = coded_rows_on_cuda(rows, kDtype, {}, CodedStep::gelu, result.slopes);
    return result;
  }
  result.rows = to_coded_rows(at::gelu(rows), kDtype, {});
  if (with_slopes) {
    const at::Tensor floats = rows.to(at::kFloat);
    const at::Tensor slopes = at::gelu_backward(at::ones_like(floats), floats);
    result.slopes.copy_((slopes * kSlopeSteps).round() + kSlopeZero);
  }
  return result;
}

CodedRows gelu_slopes_to_coded_rows(const at::Tensor& grad, const at::Tensor& slopes,
                                    const at::Tensor& factors) {
  constexpr auto kDtype = at::kFloat8_e4m3fn;
  const at::Tensor rows = grad.contiguous();
  if (is_rehearsed(rows)) return rehearsed::coded_rows(rows, kDtype);
  if (!grad.is_cpu())
    return coded_rows_on_cuda(rows, kDtype, factors, CodedStep::gelu_slopes, slopes);
  const at::Tensor steep = (slopes.to(at::kFloat) - kSlopeZero) / kSlopeSteps;
  return to_coded_rows((rows.to(at::kFloat) * steep).to(rows.scalar_type()), kDtype, factors);
}

at::Tensor product(const CodedRows& rows, const at::Tensor& codes, const at::Tensor& scales,
                   const at::Tensor& bias, at::ScalarType dtype) {
  if (is_rehearsed(rows.codes)) return rehearsed::product(rows, codes, dtype);
  if (rows.codes.is_cpu()) return product_on_cpu(rows, codes, scales, bias, dtype);
  const std::int64_t columns = codes.size(0);
  const auto floats = rows.scales.options();
  if (rows.codes.size(0) == 0) return at::empty({0, columns}, floats.dtype(dtype));
  const at::Tensor by_column =
      scales.defined() ? scales.view({1, columns}) : at::ones({1, columns}, floats);
  return at::_scaled_mm(rows.codes, codes.t(), rows.scales.view({-1, 1}), by_column,
                        bias.defined() ? std::optional(bias) : std::nullopt,
                        /*scale_result=*/std::nullopt, dtype, kFastAccumulation);
}

void separate(const EightBitSlices& layout, const at::Tensor& slices, const at::Tensor& codes,
              const at::Tensor& scales) {
  if (is_rehearsed(slices)) return rehearsed::separate(slices, codes);
  constexpr std::int64_t kWord = sizeof(std::int64_t);
  // A word at a time: slices and their codes are multiples of 128 bytes.
  codes.view({layout.num_slices, layout.slice_numel})
      .view(at::kLong)
      .copy_(slices.view({layout.num_slices, layout.slice_bytes()})
                 .view(at::kLong)
                 .narrow(1, 0, layout.slice_numel / kWord));
  if (slices.is_cpu())
    scales.copy_(layout.all_scales(slices));
  else
    scales_on_cuda(layout, slices, scales);
}

void transpose_bytes(const at::Tensor& matrix, const at::Tensor& out) {
  if (is_rehearsed(matrix)) return rehearsed::transpose_bytes(matrix);
  if (matrix.is_cpu())
    out.copy_(matrix.t());
  else
    transpose_on_cuda(matrix, out);
}

}  // namespace floe::kernels
