// Moments on a rank's device: of the stream that computes on an accelerator, of the host on the CPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <cstddef>
#include <vector>

namespace floe::diag {

class DeviceClock {
 public:
  explicit DeviceClock(c10::Device device) : device_(device) {}

  // The moment when everything that was given to the current stream so far is done. Does not wait.
  std::size_t now();
  // Whether the device is that far. Does not wait.
  bool is_past(std::size_t moment) const;
  // Waits until the device has reached the last moment.
  void wait() const;
  // The same, but not for longer than that: a device that hangs is given up.
  void wait_at_most(std::chrono::milliseconds patience) const;
  // Of a moment that is past, since the first one.
  double microseconds(std::size_t moment) const;
  bool is_of_device() const { return !device_.is_cpu(); }

 private:
  c10::Device device_;
  std::vector<std::chrono::steady_clock::time_point> host_;  // on the CPU
  std::vector<c10::Event> events_;                           // else
};

}  // namespace floe::diag
