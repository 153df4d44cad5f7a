// What this machine has for a run: cores, memory and GPUs, as far as this process may use them.
#pragma once

#include <cstdint>
#include <string>

namespace floe::starter {

struct Machine {
  std::int64_t cores = 1;
  std::int64_t memory = 0;    // of the machine, or of the container if that allows less
  bool in_container = false;  // whose limit `memory` is
  std::int64_t num_gpus = 0;
  std::int64_t gpu_memory = 0;  // that is free on the one that has least of it

  // "2 cores, 24.0 GiB of memory, no GPU"
  std::string text() const;
};

// GPUs count when this program can use them. `root` is put in front of /proc and /sys.
Machine look_at_machine(const std::string& root = "");

}  // namespace floe::starter
