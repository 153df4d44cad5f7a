#include "floe/train/device_peak.h"

#include <array>
#include <string>
#include <string_view>

#ifdef FLOE_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace floe::train {
namespace {

struct Known {
  std::string_view name;  // part of the device's
  double half, tf32;      // dense, without sparsity
};
constexpr std::array<Known, 7> kKnown{{{"H200", 989, 494},
                                       {"H100 PCIe", 756, 378},
                                       {"H100", 989, 494},
                                       {"A100", 312, 156},
                                       {"L40S", 362, 183},
                                       {"A10G", 70, 35},
                                       {"V100", 125, 15.7}}};

std::string device_name([[maybe_unused]] c10::Device device) {
#ifdef FLOE_CUDA
  if (device.is_cuda()) return at::cuda::getDeviceProperties(device.index())->name;
#endif
  return "";
}

}  // namespace

std::optional<double> peak_tflops(const RunConfig& config, c10::Device device) {
  if (config.log.peak_tflops) return config.log.peak_tflops;
  const bool half =
      config.strategy.mixed_precision.param != DType::f32 || config.precision.autocast;
  const std::string name = device_name(device);
  for (const Known& known : kKnown)
    if (name.find(known.name) != std::string::npos) return half ? known.half : known.tf32;
  return std::nullopt;
}

}  // namespace floe::train
