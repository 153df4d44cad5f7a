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

class Timer {
 public:
  Timer(c10::Device device, int rounds) : device_(device), rounds_(rounds) {}

  // Of one call, after one that is not counted: the median over rounds. A round of a GPU is as many
  // calls as take `kLeastSeconds`, and the device is synchronised around it. On the CPU, which
  // others may use as well, it is the fastest of as many short ones: what is taken away now and
  // then is not the machine's.
  double seconds(const std::function<void()>& work) const;

  c10::Device device() const { return device_; }
  int rounds() const { return rounds_; }

 private:
  double calls_seconds(const std::function<void()>& work, int calls) const;
  double round(const std::function<void()>& work, double first) const;

  c10::Device device_;
  int rounds_;
};

}  // namespace floe::plan
