#include <ATen/Parallel.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/add.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>

#include "floe/plan/calibrate/device_rates.h"
#include "floe/plan/calibrate/timing.h"

namespace floe::plan {
namespace {

std::string name_of_cpu() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const auto colon = line.find(": "); colon != std::string::npos)
        return line.substr(colon + 2);
  return "CPU";
}

class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

struct ProductRate {
  double tflops = 0, half = 0;
};

// Of a forward and both gradients with these sizes, seconds for each flop; the weight [n, k] as a
// linear layer has it.
double product_seconds_per_flop(const Timer& timer, at::ScalarType dtype, std::int64_t m,
                                std::int64_t n, std::int64_t k) {
  const auto options = at::TensorOptions().dtype(dtype);
  const at::Tensor x = at::randn({m, k}, options), weight = at::randn({n, k}, options),
                   slope = at::randn({m, n}, options);
  const double seconds = timer.seconds([&] {
    at::mm(x, weight.t());
    at::mm(slope, weight);
    at::mm(slope.t(), x);
  });
  return seconds /
         (3 * 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k));
}

// Seconds for a flop are (1 + half / smallest side) / rate: a line through few rows and through
// many.
ProductRate product_rate(const Timer& timer, at::ScalarType dtype) {
  constexpr std::int64_t kFew = 32, kMany = 512;
  const double few = product_seconds_per_flop(timer, dtype, kFew, 1024, 768);
  const double many = product_seconds_per_flop(timer, dtype, kMany, 1024, 768);
  const double slope = std::max(0.0, (few - many) / (1.0 / kFew - 1.0 / kMany));
  const double least = std::max(many - slope / kMany, 0.2 * many);
  return {1 / least / 1e12, slope / least};
}

// Forward and backward over `length` keys; [2, 8, length, 64].
double cpu_attention_tflops(const Timer& timer, std::int64_t length) {
  constexpr std::int64_t kRows = 2, kHeads = 8, kDim = 64;
  const at::Tensor q = at::randn({kRows, kHeads, length, kDim}).requires_grad_(),
                   k = at::randn({kRows, kHeads, length, kDim}).requires_grad_(),
                   v = at::randn({kRows, kHeads, length, kDim}).requires_grad_();
  const at::Tensor slope = at::ones({kRows, kHeads, length, kDim});
  const double seconds = timer.seconds([&] {
    at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true).backward(slope);
    for (const at::Tensor& x : {q, k, v}) x.mutable_grad().reset();
  });
  const double pairs = kRows * static_cast<double>(length) * static_cast<double>(length) / 2;
  return 14 * pairs * kHeads * kDim / seconds / 1e12;
}

// What a step does beside products, over activations of a few hundred tokens: sums, GELU, norms
// and softmax, forward and backward; bytes as a rehearsal counts them.
double cpu_pass_gbs(const Timer& timer) {
  constexpr std::int64_t kRows = 512, kWidth = 1024;
  const at::Tensor x = at::randn({kRows, kWidth}), y = at::randn({kRows, kWidth}),
                   weight = at::ones({kWidth}), bias = at::zeros({kWidth});
  const auto bytes = static_cast<double>(x.nbytes());
  const double seconds = timer.seconds([&] {
    at::add(x, y);
    at::add(x, y);
    at::gelu(x);
    at::gelu_backward(y, x);
    const auto [out, mean, rstd] = at::native_layer_norm(x, {kWidth}, weight, bias, 1e-5);
    at::native_layer_norm_backward(y, x, {kWidth}, mean, rstd, weight, bias, {true, true, true});
    const at::Tensor logs = at::_log_softmax(x, 1, false);
    at::_log_softmax_backward_data(y, logs, 1, at::kFloat);
  });
  constexpr double kTensors = 3 + 3 + 2 + 3 + 2 + 3 + 2 + 3;
  return kTensors * bytes / seconds / 1e9;
}

double cpu_copy_gbs(const Timer& timer) {
  const at::Tensor from = at::randn({std::int64_t{1} << 23}),
                   to = at::zeros({std::int64_t{1} << 23});
  return static_cast<double>(from.nbytes()) / timer.seconds([&] { to.copy_(from); }) / 1e9;
}

}  // namespace

DeviceRates measure_cpu(int rounds) {
  const int cores = available_cores();
  const Timer timer(c10::Device(c10::kCPU), rounds);
  DeviceRates rates;
  rates.name = name_of_cpu();
  rates.cores = cores;
  rates.memory_bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  const Threads all(cores);
  const ProductRate fp32 = product_rate(timer, at::kFloat);
  rates.fp32_tflops = fp32.tflops;
  rates.product_half = fp32.half;
  const double bf16 = product_seconds_per_flop(timer, at::kBFloat16, 256, 1024, 768);
  rates.bf16_tflops = (1 + fp32.half / 256) / bf16 / 1e12;
  const double few = cpu_attention_tflops(timer, 64), many = cpu_attention_tflops(timer, 512);
  rates.attention_tflops = few;
  const double slope = std::max(0.0, (1 / few - 1 / many) / (1.0 / 64 - 1.0 / 512));
  const double least = std::max(1 / many - slope / 512, 0.2 / many);
  rates.flash_tflops = 1 / least;
  rates.flash_half = slope / least;
  rates.memory_gbs = cpu_pass_gbs(timer);
  rates.update_gbs = update_rate(timer, std::int64_t{1} << 22);
  rates.host_gbs = cpu_copy_gbs(timer);
  rates.kernel_us = 1e6 * issue_seconds(timer);
  if (cores > 1) {
    const Threads one(1);
    const auto share = [&](double alone, double together) {
      return std::clamp(alone / together, 1.0 / cores, 1.0);
    };
    rates.core_share = share(product_rate(timer, at::kFloat).tflops, fp32.tflops);
    rates.core_memory_share = share(cpu_pass_gbs(timer), rates.memory_gbs);
  }
  return rates;
}

}  // namespace floe::plan
