#include "floe/launch/environment.h"

#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <string_view>

#include "floe/core/error.h"

namespace floe::launch {
namespace {

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

bool can_bind(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return bound;
}

}  // namespace

Variables rank_environment(int rank, int world_size, int port, bool prefixed) {
  Variables variables{{"RANK", str(rank)},          {"WORLD_SIZE", str(world_size)},
                      {"LOCAL_RANK", str(rank)},    {"LOCAL_WORLD_SIZE", str(world_size)},
                      {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", str(port)},
                      {"FLOE_LAUNCHED", "1"}};
  if (prefixed) variables.emplace_back("FLOE_LOG_RANK", "0");
  if (!std::getenv("OMP_NUM_THREADS"))
    variables.emplace_back("OMP_NUM_THREADS", str(std::max(1, usable_cores() / world_size)));
  return variables;
}

std::vector<std::string> merged_environment(const Variables& variables) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string_view::npos)
      merged[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : variables) merged[name] = value;
  std::vector<std::string> entries;
  entries.reserve(merged.size());
  for (const auto& [name, value] : merged) entries.push_back(str(name, "=", value));
  return entries;
}

int free_port() {
  std::random_device random;
  std::uniform_int_distribution<int> any_port(10'000, 32'000);
  for (int attempt = 0; attempt < 1000; ++attempt)
    if (const int port = any_port(random); can_bind(port)) return port;
  throw CommError(
      "no free TCP port from 10000 to 32000 for the ranks to meet at; pass one with "
      "--env MASTER_PORT=N");
}

}  // namespace floe::launch
