// Every kernel and copy that a device runs while a KernelEvents lives: bench/timeline.py makes
// something of them.
#pragma once

#include <nlohmann/json.hpp>

namespace floe::bench {

class KernelEvents {
 public:
  KernelEvents();
  // {"names": [...], "events": [[index of the name, stream, begin in µs, duration in µs], ...]}
  nlohmann::json finish();
};

}  // namespace floe::bench
