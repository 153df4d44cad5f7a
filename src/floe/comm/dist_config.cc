#include "floe/comm/dist_config.h"

#include <charconv>

#include "floe/schema/schema.h"

namespace floe {
namespace {

constexpr const char* kNotWithEnv =
    "has no effect with init: env, which takes it from the environment; remove it, or set init to "
    "tcp://HOST:PORT";

// tcp://HOST:PORT with a port from 1 to 65535.
bool is_tcp_address(const std::string& text) {
  constexpr std::string_view kScheme = "tcp://";
  const std::size_t colon = text.rfind(':');
  if (!text.starts_with(kScheme) || colon <= kScheme.size()) return false;
  int port = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data() + colon + 1, end, port);
  return result.ec == std::errc() && result.ptr == end && port >= 1 && port <= 65535;
}

}  // namespace

void describe(config::Schema<DistConfig>& s) {
  using C = DistConfig;
  s.choice("backend", &C::backend, {"auto", "gloo", "nccl"},
           "Communication library; auto takes nccl with GPUs, else gloo");
  s.choice(
      "device", &C::device, {"auto", "cpu", "cuda"},
      "Where the model is; auto: GPUs with nccl, else the CPU. cuda with gloo lets ranks share a "
      "GPU: rank i of a machine takes GPU i modulo their number");
  s.field("init", &C::init, "env (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), or tcp://HOST:PORT");
  s.field("interface", &C::interface,
          "Network device for the traffic between hosts, such as eth0 or ib0; empty: the one that "
          "reaches rank 0. May differ from host to host");
  s.field("timeout_s", &C::timeout_s, "Seconds that a collective may take").more_than(0);
  s.field("verify_every_steps", &C::verify_every_steps,
          "Compare what several ranks hold the same copy of (hybrid, no_shard, resident) every so "
          "many steps and before a save; null: never")
      .at_least(1);
  s.field("rank", &C::rank, "This process, for tcp://").at_least(0);
  s.field("world_size", &C::world_size, "Number of processes, for tcp://").at_least(1);
  s.check("device", [](const C& c) -> std::string {
    if (c.device == "cpu" && c.backend == "nccl")
      return "is cpu, but backend nccl is for GPUs; use gloo";
    return "";
  });
  s.check("init", [](const C& c) -> std::string {
    if (c.init != "env" && !is_tcp_address(c.init))
      return str("must be env or tcp://HOST:PORT, not '", c.init, "'");
    if (c.init != "env" && (!c.rank || !c.world_size))
      return "is a tcp:// address, which needs rank and world_size; set them beside it";
    return "";
  });
  s.check("rank", [](const C& c) -> std::string {
    if (c.rank && c.init == "env") return kNotWithEnv;
    if (c.rank && c.world_size && *c.rank >= *c.world_size)
      return str("is ", *c.rank, ", but must be less than world_size, which is ", *c.world_size);
    return "";
  });
  s.check("world_size",
          [](const C& c) { return c.world_size && c.init == "env" ? kNotWithEnv : ""; });
}

}  // namespace floe
