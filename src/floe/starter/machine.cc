#include "floe/starter/machine.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "floe/core/bytes.h"
#include "floe/core/str.h"

namespace floe::starter {
namespace {

namespace fs = std::filesystem;

std::string first_line_of(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// Whole numbers alone: "max" of a cgroup without a limit is none.
std::optional<std::int64_t> number_in(const std::string& text) {
  std::istringstream words(text);
  std::int64_t number = 0;
  return words >> number ? std::optional(number) : std::nullopt;
}

// The folders of the cgroups that this process is in, the innermost first. A group's limits hold
// for all inside it, so those around it count as well. Version 1 has a tree per controller, version
// 2 one for all.
std::vector<fs::path> cgroups(const std::string& root, const std::string& controller) {
  const fs::path top = root + "/sys/fs/cgroup";
  std::vector<fs::path> folders;
  std::ifstream list(root + "/proc/self/cgroup");
  for (std::string line; std::getline(list, line);) {  // "4:memory:/path" or "0::/path"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool version2 = controllers == ",,";
    if (!version2 && controllers.find("," + controller + ",") == std::string::npos) continue;
    const fs::path tree = version2 ? top : top / controller;
    fs::path path = fs::path(line.substr(second + 1)).relative_path();
    for (;; path = path.parent_path()) {
      folders.push_back(tree / path);
      if (path.empty()) break;
    }
  }
  return folders;
}

std::int64_t cores_of(const std::string& root) {
  // What the process may run on, then what a container grants of it.
  std::int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  for (const fs::path& folder : cgroups(root, "cpu")) {
    std::optional<std::int64_t> quota, period;
    if (const std::string both = first_line_of(folder / "cpu.max"); !both.empty()) {
      quota = number_in(both);
      period = number_in(both.substr(std::min(both.find(' '), both.size())));
    } else {
      quota = number_in(first_line_of(folder / "cpu.cfs_quota_us"));
      period = number_in(first_line_of(folder / "cpu.cfs_period_us"));
    }
    if (quota && period && *quota > 0 && *period > 0)
      cores = std::min(cores, std::max<std::int64_t>(1, *quota / *period));
  }
  return cores;
}

std::int64_t memory_of_machine(const std::string& root) {
  std::ifstream in(root + "/proc/meminfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("MemTotal:")) return number_in(line.substr(9)).value_or(0) * kKiB;
  return 0;
}

}  // namespace

Machine look_at_machine(const std::string& root) {
  Machine machine;
  machine.cores = cores_of(root);
  machine.memory = memory_of_machine(root);
  for (const fs::path& folder : cgroups(root, "memory"))
    for (const char* file : {"memory.max", "memory.limit_in_bytes"})
      if (const auto limit = number_in(first_line_of(folder / file));
          limit && *limit > 0 && *limit < machine.memory) {
        machine.memory = *limit;
        machine.in_container = true;
      }
  if (!at::hasCUDA()) return machine;
  machine.num_gpus = static_cast<unsigned char>(at::accelerator::deviceCount());
  for (std::int64_t gpu = 0; gpu < machine.num_gpus; ++gpu) {
    const auto [free, total] = at::accelerator::getMemoryInfo(static_cast<c10::DeviceIndex>(gpu));
    const auto bytes = static_cast<std::int64_t>(free);
    machine.gpu_memory = gpu == 0 ? bytes : std::min(machine.gpu_memory, bytes);
  }
  return machine;
}

std::string Machine::text() const {
  std::string out = str(counted(cores, "core"), ", ", format_bytes(memory), " of memory",
                        in_container ? " (the container's limit)" : "", ", ");
  if (num_gpus == 0) return out + "no GPU";
  return out + str(counted(num_gpus, "GPU"), num_gpus > 1 ? ", each with " : " with ",
                   format_bytes(gpu_memory), " free");
}

}  // namespace floe::starter
