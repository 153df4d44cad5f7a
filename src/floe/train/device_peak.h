// What a device can do at best, for MFU.
#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "floe/train/run_config.h"

namespace floe::train {

// Dense TFLOP/s in the dtype that the run computes in: log.peak_tflops, else what the makers of some
// GPUs say; nothing for the others.
std::optional<double> peak_tflops(const RunConfig& config, c10::Device device);

}  // namespace floe::train
