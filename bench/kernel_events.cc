#include "kernel_events.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace floe::bench {

KernelEvents::KernelEvents() {
  using namespace torch::profiler::impl;
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<ActivityType> activities{ActivityType::CUDA};
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
}

nlohmann::json KernelEvents::finish() {
  const auto result = torch::autograd::profiler::disableProfiler();
  std::map<std::string, std::size_t> index;
  nlohmann::json names = nlohmann::json::array(), events = nlohmann::json::array();
  std::uint64_t first = UINT64_MAX;
  for (const auto& event : result->events())
    if (event.deviceType() == c10::DeviceType::CUDA) first = std::min(first, event.startNs());
  for (const auto& event : result->events()) {
    if (event.deviceType() != c10::DeviceType::CUDA) continue;
    const auto [name, added] = index.try_emplace(event.name(), index.size());
    if (added) names.push_back(event.name());
    events.push_back({name->second, event.deviceResourceId(),
                      1e-3 * static_cast<double>(event.startNs() - first),
                      1e-3 * static_cast<double>(event.durationNs())});
  }
  return {{"names", names}, {"events", events}};
}

}  // namespace floe::bench
