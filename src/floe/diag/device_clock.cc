#include "floe/diag/device_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <thread>

namespace floe::diag {

std::size_t DeviceClock::now() {
  if (device_.is_cpu()) {
    host_.push_back(std::chrono::steady_clock::now());
    return host_.size() - 1;
  }
  // Events of the default kind of the backend keep times; torch's own default does not.
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  events_.push_back(std::move(event));
  return events_.size() - 1;
}

bool DeviceClock::is_past(std::size_t moment) const {
  return device_.is_cpu() || events_[moment].query();
}

void DeviceClock::wait() const {
  if (!events_.empty()) events_.back().synchronize();
}

void DeviceClock::wait_at_most(std::chrono::milliseconds patience) const {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!events_.empty() && !events_.back().query() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

double DeviceClock::microseconds(std::size_t moment) const {
  if (device_.is_cpu())
    return std::chrono::duration<double, std::micro>(host_[moment] - host_.front()).count();
  if (moment == 0) return 0;
  return 1e3 * events_.front().elapsedTime(events_[moment]);
}

}  // namespace floe::diag
