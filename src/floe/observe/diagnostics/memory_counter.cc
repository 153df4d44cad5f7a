#include "floe/observe/diagnostics/memory_counter.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <new>

namespace floe::diagnostics {
namespace {

// In front of every block; as large as torch's alignment, so that the data stays aligned.
struct alignas(64) Header {
  std::int64_t bytes;
};

// Above torch's own allocators and what it loads itself.
constexpr std::uint8_t kPriority = 100;

}  // namespace

// The data pointer is its own context and `raw_deleter` is given, because oneDNN allocates through
// `raw_allocate`.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    auto* header = new (c10::alloc_cpu(sizeof(Header) + bytes)) Header;
    header->bytes = static_cast<std::int64_t>(bytes);
    counter().add(header->bytes);
    void* data = header + 1;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  // Never destroyed: tensors may be freed while the process ends.
  static MemoryCounter& counter() {
    static auto* counter = new MemoryCounter;
    return *counter;
  }

 private:
  static void release(void* data) {
    if (!data) return;
    Header* header = static_cast<Header*>(data) - 1;
    counter().remove(header->bytes);
    c10::free_cpu(header);
  }
};

MemoryCounter& MemoryCounter::install() {
  static const bool installed = [] {
    c10::SetCPUAllocator(new CountingAllocator, kPriority);
    return true;
  }();
  static_cast<void>(installed);
  return CountingAllocator::counter();
}

void MemoryCounter::add(std::int64_t bytes) {
  num_allocations_.fetch_add(1, std::memory_order_relaxed);
  const std::int64_t now = current_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::int64_t peak = peak_.load(std::memory_order_relaxed);
  while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

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

}  // namespace floe::diagnostics
