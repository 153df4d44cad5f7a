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
#include <atomic>
#include <ctime>
#include <exception>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

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

// Of the calling thread.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

using Work = std::function<void()>;
using MakeWork = std::function<Work()>;  // with tensors of its own

// Times work on cores by the processor time of the threads that do it: what else runs on the
// machine takes time away from them, but is not theirs.
class CoreTimer {
 public:
  CoreTimer(int cores, int rounds) : cores_(cores), rounds_(rounds) {}

  // Seconds of one call on one core, while the others idle, or do the same.
  double alone(const MakeWork& make) const { return on_threads(1, make); }
  double together(const MakeWork& make) const { return on_threads(cores_, make); }
  int cores() const { return cores_; }

 private:
  static constexpr double kRoundSeconds = 0.03;

  double on_threads(int count, const MakeWork& make) const {
    std::vector<double> found(static_cast<std::size_t>(count));
    std::vector<std::exception_ptr> failures(found.size());
    std::atomic<int> ready{0}, measured{0};
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < found.size(); ++t)
      threads.emplace_back([&, t] {
        try {
          at::set_num_threads(1);
          const Work work = make();
          work();
          ready += 1;
          while (ready < count) work();
          found[t] = median_round(work);
          measured += 1;
          while (measured < count) work();  // until nobody measures any more
        } catch (...) {
          failures[t] = std::current_exception();
          ready += 1, measured += 1;
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& failure : failures)
      if (failure) std::rethrow_exception(failure);
    return median_of(found);
  }

  double median_round(const Work& work) const {
    std::vector<double> times;
    for (int round = 0; round < rounds_; ++round) {
      const double begin = thread_seconds();
      int calls = 0;
      double now = begin;
      while (now - begin < kRoundSeconds) {
        work();
        calls += 1;
        now = thread_seconds();
      }
      times.push_back((now - begin) / calls);
    }
    return median_of(times);
  }

  int cores_, rounds_;
};

// A forward and both gradients with these sizes; the weight [n, k] as a linear layer has it.
constexpr std::int64_t kProductColumns = 1024, kProductSummed = 768;
MakeWork products_of(at::ScalarType dtype, std::int64_t rows) {
  return [=]() -> Work {
    const auto options = at::TensorOptions().dtype(dtype);
    const at::Tensor x = at::randn({rows, kProductSummed}, options),
                     weight = at::randn({kProductColumns, kProductSummed}, options),
                     slope = at::randn({rows, kProductColumns}, options);
    return [=] {
      at::mm(x, weight.t());
      at::mm(slope, weight);
      at::mm(slope.t(), x);
    };
  };
}
double product_flops(std::int64_t rows) {
  return 3 * 2.0 * static_cast<double>(rows * kProductColumns * kProductSummed);
}

// Seconds for a unit of work, a line in 1 / size: of few and of many.
struct Line {
  double rate = 0, half = 0;  // rate · size / (size + half)
};
Line line_through(double few, double per_few, double many, double per_many) {
  const double slope = std::max(0.0, (per_few - per_many) / (1 / few - 1 / many));
  const double least = std::max(per_many - slope / many, 0.2 * per_many);
  return {1 / least, slope / least};
}

// Forward and backward of causal attention over `length` keys, eight heads of 64.
constexpr std::int64_t kAttentionRows = 2, kAttentionHeads = 8, kAttentionDim = 64;
MakeWork attention_over(std::int64_t length) {
  return [=]() -> Work {
    const auto heads = [&] {
      return at::randn({kAttentionRows, kAttentionHeads, length, kAttentionDim}).requires_grad_();
    };
    const at::Tensor q = heads(), k = heads(), v = heads(), slope = at::ones(q.sizes());
    return [=] {
      at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true).backward(slope);
      for (const at::Tensor& x : {q, k, v}) x.mutable_grad().reset();
    };
  };
}
double attention_flops(std::int64_t length) {
  const double pairs = kAttentionRows * static_cast<double>(length * length) / 2;
  return 14 * pairs * kAttentionHeads * kAttentionDim;
}

// What a step does beside products, over activations of a few hundred tokens: sums, GELU, norms
// and softmax, forward and backward; bytes as a rehearsal counts them.
constexpr std::int64_t kPassRows = 256, kPassWidth = 1024;
constexpr double kPassBytes = (3 + 3 + 2 + 3 + 2 + 3 + 2 + 3) * 4.0 * kPassRows * kPassWidth;
Work passes() {
  const at::Tensor x = at::randn({kPassRows, kPassWidth}), y = at::randn({kPassRows, kPassWidth}),
                   weight = at::ones({kPassWidth}), bias = at::zeros({kPassWidth});
  return [=] {
    at::add(x, y);
    at::add(x, y);
    at::gelu(x);
    at::gelu_backward(y, x);
    const auto [out, mean, rstd] = at::native_layer_norm(x, {kPassWidth}, weight, bias, 1e-5);
    at::native_layer_norm_backward(y, x, {kPassWidth}, mean, rstd, weight, bias,
                                   {true, true, true});
    const at::Tensor logs = at::_log_softmax(x, 1, false);
    at::_log_softmax_backward_data(y, logs, 1, at::kFloat);
  };
}

constexpr std::int64_t kCopied = std::int64_t{1} << 24, kUpdated = std::int64_t{1} << 23;
Work copies() {
  const at::Tensor from = at::randn({kCopied}), to = at::zeros({kCopied});
  return [=] { to.copy_(from); };
}

}  // namespace

DeviceRates measure_cpu(int rounds) {
  const CoreTimer timer(available_cores(), rounds);
  const double cores = timer.cores();
  DeviceRates rates;
  rates.name = name_of_cpu();
  rates.cores = timer.cores();
  rates.memory_bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  constexpr std::int64_t kFew = 32, kMany = 512, kSome = 256, kFewKeys = 64, kManyKeys = 512;
  const auto per_flop = [](double seconds, double flops) { return seconds / flops; };
  const double many = timer.together(products_of(at::kFloat, kMany));
  const Line fp32 = line_through(
      kFew, per_flop(timer.together(products_of(at::kFloat, kFew)), product_flops(kFew)), kMany,
      per_flop(many, product_flops(kMany)));
  rates.fp32_tflops = cores * fp32.rate / 1e12;
  rates.product_half = fp32.half;
  rates.bf16_tflops = cores * (1 + fp32.half / kSome) * product_flops(kSome) /
                      timer.together(products_of(at::kBFloat16, kSome)) / 1e12;
  const double few_keys = timer.together(attention_over(kFewKeys));
  const Line flash =
      line_through(kFewKeys, per_flop(few_keys, attention_flops(kFewKeys)), kManyKeys,
                   per_flop(timer.together(attention_over(kManyKeys)), attention_flops(kManyKeys)));
  rates.attention_tflops = cores * attention_flops(kFewKeys) / few_keys / 1e12;
  rates.flash_tflops = cores * flash.rate / 1e12;
  rates.flash_half = flash.half;
  const double pass = timer.together(passes);
  rates.memory_gbs = cores * kPassBytes / pass / 1e9;
  rates.update_gbs = cores * kAdamWBytes * kUpdated / timer.together([] {
    return adamw_work(c10::Device(c10::kCPU), kUpdated);
  }) / 1e9;
  rates.host_gbs = cores * 4.0 * kCopied / timer.together(copies) / 1e9;
  rates.kernel_us =
      1e6 * timer.alone([] { return tiny_kernels(c10::Device(c10::kCPU)); }) / kTinyKernels;
  if (timer.cores() > 1) {
    const auto share = [&](double alone, double one_of_all) {
      return std::clamp(one_of_all / alone / cores, 1 / cores, 1.0);
    };
    rates.core_share = share(timer.alone(products_of(at::kFloat, kMany)), many);
    rates.core_memory_share = share(timer.alone(passes), pass);
  }
  return rates;
}

}  // namespace floe::plan
