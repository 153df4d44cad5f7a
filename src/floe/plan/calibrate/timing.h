// Seconds of work on a device.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <vector>

namespace floe::plan {

// That this process may use.
int available_cores();

double median_of(std::vector<double> values);

// All that was issued to the device is done.
void synchronize_device(c10::Device device);

// Of work on a GPU.
class Timer {
 public:
  Timer(c10::Device device, int rounds) : device_(device), rounds_(rounds) {}

  // Of one call: the median over rounds, each of as many calls as take `kLeastSeconds`, after one
  // that is not counted. The device is synchronised around a round.
  double seconds(const std::function<void()>& work) const;

  c10::Device device() const { return device_; }
  int rounds() const { return rounds_; }

 private:
  double round(const std::function<void()>& work, int calls) const;

  c10::Device device_;
  int rounds_;
};

}  // namespace floe::plan
