#include "floe/launch/environment.h"

#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <map>
#include <random>
#include <sstream>
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

Variables rank_environment(int rank, int world_size, int port, bool prefixed,
                           const std::string& job) {
  Variables variables{{"RANK", str(rank)},          {"WORLD_SIZE", str(world_size)},
                      {"LOCAL_RANK", str(rank)},    {"LOCAL_WORLD_SIZE", str(world_size)},
                      {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", str(port)},
                      {"FLOE_LAUNCHED", "1"}};
  if (!job.empty()) variables.emplace_back("FLOE_JOB_ID", job);
  if (prefixed) variables.emplace_back("FLOE_LOG_RANK", "0");
  if (!std::getenv("OMP_NUM_THREADS"))
    variables.emplace_back("OMP_NUM_THREADS", str(std::max(1, usable_cores() / world_size)));
  return variables;
}

std::string new_job_id() {
  std::random_device random;
  return str(std::hex, std::setfill('0'), std::setw(8), random(), std::setw(8), random());
}

std::vector<std::string> merged_environment(const Variables& variables) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string_view::npos && !text.starts_with("TORCHELASTIC_"))
      merged[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : variables) merged[name] = value;
  std::vector<std::string> entries;
  entries.reserve(merged.size());
  for (const auto& [name, value] : merged) entries.push_back(str(name, "=", value));
  return entries;
}

PortRange ports_to_listen_at(const std::string& ephemeral) {
  constexpr PortRange kAll{10'000, 32'000};
  constexpr int kFewest = 1000;
  int low = 0, high = 0;
  std::istringstream words(ephemeral);
  if (!(words >> low >> high) || low < 0 || low > high || high > 65535) return kAll;
  const PortRange below{kAll.first, std::min(kAll.last, low - 1)};
  const PortRange above{std::max(kAll.first, high + 1), kAll.last};
  const PortRange larger = below.last - below.first >= above.last - above.first ? below : above;
  return larger.last - larger.first >= kFewest ? larger : kAll;
}

int free_port() {
  std::string ephemeral;
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  std::getline(file, ephemeral);
  const PortRange range = ports_to_listen_at(ephemeral);
  std::random_device random;
  std::uniform_int_distribution<int> any_port(range.first, range.last);
  for (int attempt = 0; attempt < 1000; ++attempt)
    if (const int port = any_port(random); can_bind(port)) return port;
  throw CommError(str("no free TCP port from ", range.first, " to ", range.last,
                      " for the ranks to meet at; pass one with --env MASTER_PORT=N"));
}

}  // namespace floe::launch
