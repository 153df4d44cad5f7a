// How much memory tensors take on the device of a rank: torch's allocator says it for a GPU, floe's own
// counter (memory_counter.h) for the CPU.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace floe::diag {

struct DeviceMemory {
  std::int64_t current_bytes = 0;
  std::int64_t peak_bytes = 0;  // since the last reset
};

// The first call for the CPU installs the counter: what was allocated before it does not count.
DeviceMemory device_memory(c10::Device device);
void reset_peak(c10::Device device);

}  // namespace floe::diag
