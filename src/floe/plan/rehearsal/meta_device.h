// The meta device as one that only counts: allocations, streams and events.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace floe::plan {

// What is told of the device.
class DeviceListener {
 public:
  virtual ~DeviceListener() = default;
  // The number of an event that takes place where `stream` is now.
  virtual int record(int stream) = 0;
  virtual void block(int stream, int event) = 0;
};

// Bytes that live on the device, by the owner that was current when they were made.
class DeviceMemory {
 public:
  static constexpr int kNobody = -1;
  static constexpr int kPool = -2;  // buffers of the engine

  std::int64_t live() const { return live_; }
  std::int64_t peak() const { return peak_; }
  std::int64_t host_peak() const { return host_peak_; }
  std::int64_t num_allocations() const { return num_allocations_; }
  void reset_peak() { peak_ = live_, host_peak_ = host_live_; }
  void set_owner(int owner) { owner_ = owner; }
  int owner() const { return owner_; }
  // Of owners 0 to count - 1, and behind them of nobody.
  std::vector<std::int64_t> by_owner(int count) const;

  void add(std::int64_t bytes, int owner, bool in_host);

 private:
  std::int64_t live_ = 0, peak_ = 0, host_live_ = 0, host_peak_ = 0;
  std::int64_t num_allocations_ = 0;
  int owner_ = kNobody;
  std::vector<std::int64_t> owned_;  // by owner - kPool
};

// While it lives, tensors of the meta device are counted and its streams are told of; one at a
// time. Tensors may outlive it.
class MetaDevice {
 public:
  // `block_bytes`: what allocations are rounded to.
  MetaDevice(DeviceListener& listener, std::int64_t block_bytes);
  ~MetaDevice();
  MetaDevice(const MetaDevice&) = delete;
  MetaDevice& operator=(const MetaDevice&) = delete;

  DeviceMemory& memory();
  static int current_stream();
  // Whether that memory stands for the host's (kernels::RehearsedHostMemory).
  static bool is_host(const void* context);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace floe::plan
