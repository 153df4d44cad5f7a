// The block `dist:`: how the ranks find each other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace floe {
namespace config {
template <class T>
class Schema;
}

struct DistConfig {
  std::string backend = "auto";  // auto, gloo, nccl
  std::string device = "auto";   // auto, cpu, cuda
  std::string init = "env";      // env, or tcp://HOST:PORT with rank and world_size
  std::string interface;         // of this host, for the traffic between hosts; empty: by itself
  double timeout_s = 600;
  std::optional<std::int64_t> verify_every_steps = 1000;
  std::optional<std::int64_t> rank, world_size;  // exactly with tcp://
};
void describe(config::Schema<DistConfig>& s);

}  // namespace floe
