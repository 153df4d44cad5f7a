// Counts the bytes of CPU tensors, exactly: an allocator that does what torch's own does and keeps
// books.
//
//   auto& memory = diagnostics::MemoryCounter::install();   // first thing in main
//   ...
//   memory.reset_peak();
//   step();
//   log(memory.peak_bytes());
//
// Only what is allocated after the installation counts; earlier blocks are freed as they always
// were, because each carries its own deleter. Sizes are those that were asked for, without the
// counter's header and torch's alignment. Memory that bypasses torch's allocator (std::vector, the
// sockets of a communication library) does not count.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace floe::diagnostics {

// Threads: every function may be called from any thread; blocks may be freed by another thread than
// the one that allocated them.
class MemoryCounter {
 public:
  // Becomes the process's CPU allocator at the first call; later calls give the same counter.
  static MemoryCounter& install();

  std::int64_t current_bytes() const { return current_.load(std::memory_order_relaxed); }
  // The most that was in use at once since the last reset_peak.
  std::int64_t peak_bytes() const { return peak_.load(std::memory_order_relaxed); }
  void reset_peak() { peak_.store(current_bytes(), std::memory_order_relaxed); }
  // Blocks since the installation; empty tensors have none.
  std::int64_t num_allocations() const { return num_allocations_.load(std::memory_order_relaxed); }

  MemoryCounter(const MemoryCounter&) = delete;
  MemoryCounter& operator=(const MemoryCounter&) = delete;

 private:
  friend class CountingAllocator;
  MemoryCounter() = default;
  void add(std::int64_t bytes);
  void remove(std::int64_t bytes) { current_.fetch_sub(bytes, std::memory_order_relaxed); }

  std::atomic<std::int64_t> current_{0}, peak_{0}, num_allocations_{0};
};

// How much memory tensors take on the device of a rank: torch's allocator says it for a GPU, the
// counter above for the CPU.
struct DeviceMemory {
  std::int64_t current_bytes = 0;
  std::int64_t peak_bytes = 0;  // since the last reset
};

// The first call for the CPU installs the counter: what was allocated before it does not count.
DeviceMemory device_memory(c10::Device device);
void reset_peak(c10::Device device);

}  // namespace floe::diagnostics
