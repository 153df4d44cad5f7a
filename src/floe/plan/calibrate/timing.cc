#include "floe/plan/calibrate/timing.h"

#include <ATen/DeviceAccelerator.h>
#include <sched.h>

#include <algorithm>

#include "floe/core/stopwatch.h"

namespace floe::plan {
namespace {

constexpr double kLeastSeconds = 0.06;  // of a round
constexpr int kMostCalls = 10'000;

}  // namespace

int available_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void synchronize_device(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

double Timer::round(const std::function<void()>& work, int calls) const {
  synchronize_device(device_);
  const Stopwatch watch;
  for (int i = 0; i < calls; ++i) work();
  synchronize_device(device_);
  return watch.seconds() / calls;
}

double Timer::seconds(const std::function<void()>& work) const {
  work();
  const double first = std::max(round(work, 1), 1e-7);
  const int calls = static_cast<int>(std::clamp(kLeastSeconds / first, 1.0, double{kMostCalls}));
  std::vector<double> times;
  for (int i = 0; i < rounds_; ++i) times.push_back(round(work, calls));
  return median_of(std::move(times));
}

}  // namespace floe::plan
