#include "floe/diag/device_memory.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include "floe/diag/memory_counter.h"

namespace floe::diag {

DeviceMemory device_memory(c10::Device device) {
  if (device.is_cpu()) {
    const MemoryCounter& counter = MemoryCounter::install();
    return {counter.current_bytes(), counter.peak_bytes()};
  }
  at::globalContext().lazyInitDevice(device.type());
  const auto stats = at::accelerator::getDeviceStats(device.index());
  const auto& all =
      stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return {all.current, all.peak};
}

void reset_peak(c10::Device device) {
  if (device.is_cpu()) {
    MemoryCounter::install().reset_peak();
    return;
  }
  at::globalContext().lazyInitDevice(device.type());
  at::accelerator::resetPeakStats(device.index());
}

}  // namespace floe::diag
