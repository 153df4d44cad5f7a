// What a device computes and copies in a second, with operators as a training step has them.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace floe::plan {

struct DeviceRates {
  std::string name;  // of the device
  std::int64_t memory_bytes = 0, context_bytes = 0;
  std::optional<double> bf16_tflops, fp32_tflops;
  std::optional<double> fp8_tflops;  // 0: it has no such products
  std::optional<double> attention_tflops, flash_tflops, flash_half;
  std::int64_t processors = 0;  // of a GPU
  double memory_gbs = 0, update_gbs = 0, host_gbs = 0;
  double kernel_us = 0, issue_us = 0;

  // Of the CPU.
  std::int64_t cores = 1;
  double core_share = 1, core_memory_share = 1, product_half = 0;
};

DeviceRates measure_gpu(c10::Device device, int rounds);
bool has_fp8_products(c10::Device device);
// All cores that this process may use, whatever OMP_NUM_THREADS says; the number of threads is as
// it was afterwards.
DeviceRates measure_cpu(int rounds);

// What every kind of device does alike. One pass of AdamW over fp32 slices, which reads and writes
// so many bytes of each element: weight, two moments and gradient; three are written.
inline constexpr double kAdamWBytes = 28;
std::function<void()> adamw_work(c10::Device device, std::int64_t numel);
// Forward and backward over single numbers: so many kernels.
inline constexpr int kTinyKernels = 200;
std::function<void()> tiny_kernels(c10::Device device);

}  // namespace floe::plan
