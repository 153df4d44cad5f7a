#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "floe/kernels/eight_bit/fp8_product.h"
#include "floe/nn/attention.h"
#include "floe/plan/calibrate/device_rates.h"
#include "floe/plan/calibrate/timing.h"

#ifdef FLOE_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <cuda_runtime_api.h>
#endif

namespace floe::plan {
namespace {

at::TensorOptions on(c10::Device device, at::ScalarType dtype) {
  return at::TensorOptions().device(device).dtype(dtype);
}

double gpu_product_tflops(const Timer& timer, at::ScalarType dtype, std::int64_t rows,
                          std::int64_t side) {
  const at::Tensor a = at::randn({rows, side}, on(timer.device(), dtype));
  const at::Tensor b = at::randn({side, side}, on(timer.device(), dtype));
  const double seconds = timer.seconds([&] { at::mm(a, b); });
  return 2.0 * static_cast<double>(rows) * static_cast<double>(side) * static_cast<double>(side) /
         seconds / 1e12;
}

double fp8_tflops(const Timer& timer, std::int64_t rows, std::int64_t side) {
  if (!has_fp8_products(timer.device())) return 0;
  const auto options = on(timer.device(), at::kBFloat16);
  const kernels::CodedRows a =
      kernels::to_coded_rows(at::randn({rows, side}, options), at::kFloat8_e4m3fn, {});
  const kernels::CodedRows b =
      kernels::to_coded_rows(at::randn({side, side}, options), at::kFloat8_e4m3fn, {});
  const double seconds =
      timer.seconds([&] { kernels::product(a, b.codes, b.scales, {}, at::kBFloat16); });
  return 2.0 * static_cast<double>(rows) * static_cast<double>(side) * static_cast<double>(side) /
         seconds / 1e12;
}

// Forward and backward of causal attention inside of sequences of one length; as a step runs it.
std::optional<double> packed_tflops(const Timer& timer, std::int64_t sequences,
                                    std::int64_t length) {
  constexpr std::int64_t kHeads = 32, kDim = 128;
  const std::int64_t tokens = sequences * length;
  const auto options = on(timer.device(), at::kBFloat16);
  const at::Tensor q = at::randn({tokens, kHeads, kDim}, options).requires_grad_(),
                   k = at::randn({tokens, kHeads, kDim}, options).requires_grad_(),
                   v = at::randn({tokens, kHeads, kDim}, options).requires_grad_();
  const at::Tensor offsets = at::arange(sequences + 1, on(timer.device(), at::kInt)).mul_(length);
  const nn::Spans spans{offsets, length};
  const nn::PackedRule rule{true, 1 / std::sqrt(static_cast<double>(kDim)), {}};
  const at::Tensor first = nn::packed_attention(q, k, v, spans, spans, rule);
  if (!first.defined()) return std::nullopt;
  const at::Tensor slope = at::ones(first.sizes(), first.options());
  const double seconds = timer.seconds([&] {
    nn::packed_attention(q, k, v, spans, spans, rule).backward(slope);
    for (const at::Tensor& x : {q, k, v}) x.mutable_grad().reset();
  });
  const double pairs = static_cast<double>(sequences) * static_cast<double>(length) *
                       static_cast<double>(length) / 2;
  return 14.0 * pairs * static_cast<double>(kHeads * kDim) / seconds / 1e12;
}

double gpu_pass_gbs(const Timer& timer) {
  const at::Tensor a = at::randn({std::int64_t{1} << 27}, on(timer.device(), at::kBFloat16));
  const at::Tensor b = at::randn({std::int64_t{1} << 27}, on(timer.device(), at::kBFloat16));
  const auto bytes = static_cast<double>(a.nbytes());
  // Two read and one written, one read and one written.
  return 5 * bytes / timer.seconds([&] { at::gelu(at::add(a, b)); }) / 1e9;
}

// The slower of both directions.
double host_copy_gbs(const Timer& timer) {
  const at::Tensor here = at::zeros({std::int64_t{1} << 26}, on(timer.device(), at::kFloat));
  const at::Tensor host =
      at::empty(here.sizes(), at::TensorOptions().dtype(at::kFloat).pinned_memory(true));
  const double out = timer.seconds([&] { host.copy_(here, /*non_blocking=*/true); });
  const double in = timer.seconds([&] { here.copy_(host, /*non_blocking=*/true); });
  return static_cast<double>(here.nbytes()) / std::max(out, in) / 1e9;
}

// From one kernel to the next where the device always has some to do: many small ones are issued
// behind one that takes longer than their issue.
double gap_seconds(const Timer& timer) {
  constexpr int kSmall = 500;
  const at::Tensor large = at::randn({8192, 8192}, on(timer.device(), at::kFloat));
  const at::Tensor small = at::zeros({1}, on(timer.device(), at::kFloat));
  const Timer once(timer.device(), timer.rounds());
  const double alone = once.seconds([&] { at::mm(large, large); });
  const double both = once.seconds([&] {
    at::mm(large, large);
    for (int i = 0; i < kSmall; ++i) small.add_(1);
  });
  return std::max(0.0, both - alone) / kSmall;
}

}  // namespace

bool has_fp8_products(c10::Device device) {
  return kernels::why_no_fp8_products(device, at::kBFloat16).empty();
}

DeviceRates measure_gpu(c10::Device device, int rounds) {
  DeviceRates rates;
#ifdef FLOE_CUDA
  const cudaDeviceProp* properties = at::cuda::getDeviceProperties(device.index());
  rates.name = properties->name;
  rates.memory_bytes = static_cast<std::int64_t>(properties->totalGlobalMem);
  rates.processors = properties->multiProcessorCount;
  // Before anything large is allocated, of a process that has begun to work.
  at::zeros({1}, on(device, at::kFloat)).add_(1);
  synchronize_device(device);
  std::size_t free_bytes = 0, total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess)
    rates.context_bytes = static_cast<std::int64_t>(total_bytes - free_bytes);
#endif
  const Timer timer(device, rounds);
  rates.bf16_tflops = gpu_product_tflops(timer, at::kBFloat16, 16384, 4096);
  rates.fp32_tflops = gpu_product_tflops(timer, at::kFloat, 4096, 4096);
  rates.fp8_tflops = fp8_tflops(timer, 16384, 4096);
  rates.attention_tflops = packed_tflops(timer, 64, 256);
  const auto medium = packed_tflops(timer, 8, 1024), longest = packed_tflops(timer, 2, 8192);
  if (medium && longest && *longest > *medium) {
    // rate(n) = most · n / (n + half), through both.
    const double a = 1 / *medium, b = 1 / *longest;
    const double slope = (a - b) / (1.0 / 1024 - 1.0 / 8192);
    const double least = b - slope / 8192;
    if (least > 0) {
      rates.flash_tflops = 1 / least;
      rates.flash_half = slope / least;
    }
  }
  rates.memory_gbs = gpu_pass_gbs(timer);
  constexpr std::int64_t kUpdatedOnGpu = std::int64_t{1} << 26;
  rates.update_gbs =
      kAdamWBytes * kUpdatedOnGpu / timer.seconds(adamw_work(device, kUpdatedOnGpu)) / 1e9;
  rates.host_gbs = host_copy_gbs(timer);
  rates.issue_us = 1e6 * timer.seconds(tiny_kernels(device)) / kTinyKernels;
  rates.kernel_us = 1e6 * gap_seconds(timer);
  return rates;
}

std::function<void()> adamw_work(c10::Device device, std::int64_t numel) {
  const auto options = on(device, at::kFloat);
  const auto zeros = [&] { return std::vector{at::zeros({numel}, options)}; };
  return [values = zeros(), gradients = std::vector{at::randn({numel}, options)},
          averages = zeros(), squares = zeros(), steps = std::vector{at::ones({}, options)}]() {
    at::_fused_adamw_(values, gradients, averages, squares, {}, steps, 1e-3, 0.9, 0.999, 0.1, 1e-8,
                      /*amsgrad=*/false, /*maximize=*/false);
  };
}

std::function<void()> tiny_kernels(c10::Device device) {
  const at::Tensor weight = at::ones({1}, on(device, at::kFloat)).requires_grad_();
  return [weight] {
    at::Tensor x = weight;
    // Forward a product, backward two and the sum of the weight's gradients.
    for (int i = 0; i < kTinyKernels / 4; ++i) x = x * weight;
    x.backward();
    weight.mutable_grad().reset();
  };
}

}  // namespace floe::plan
