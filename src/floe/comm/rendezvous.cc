#include "floe/comm/rendezvous.h"

#include <charconv>
#include <cstdlib>

#include "floe/core/error.h"

namespace floe::comm {
namespace {

int to_int(const std::string& name, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  require<ConfigError>(
      status == std::errc() && end == text.data() + text.size() && value >= least && value <= most,
      name, "='", text, "' is not a whole number from ", least, " to ", most,
      "; start the ranks with 'floe launch', torchrun, srun or mpirun, or set it right");
  return value;
}

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  bool has(const std::string& name) const { return environment_(name).has_value(); }
  int number(const std::string& name, int least, int most) const {
    const auto text = environment_(name);
    require<ConfigError>(text.has_value(), "the environment has no ", name,
                         " although other variables of the launcher are set; set it, or start the "
                         "ranks with 'floe launch', torchrun, srun or mpirun");
    return to_int(name, *text, least, most);
  }
  int number_or(const std::string& name, int fallback, int least, int most) const {
    return has(name) ? number(name, least, most) : fallback;
  }
  std::string text_or(const std::string& name, const std::string& fallback) const {
    return environment_(name).value_or(fallback);
  }

 private:
  const Environment& environment_;
};

constexpr int kMostRanks = 1 << 20;
constexpr int kDefaultPort = 29500;

void fill_ranks(Rendezvous& r, const Reader& env, const char* rank, const char* size,
                const char* local) {
  r.world_size = env.number(size, 1, kMostRanks);
  r.rank = env.number(rank, 0, r.world_size - 1);
  r.local_rank = env.number_or(local, 0, 0, kMostRanks);
}

Rendezvous from_url(const ManualInit& init, const Reader& env) {
  constexpr std::string_view kScheme = "tcp://";
  const std::string rest = init.url.substr(kScheme.size());
  const auto colon = rest.rfind(':');
  require<ConfigError>(colon != std::string::npos && colon > 0, "dist.init '", init.url,
                       "' has no port or no host; write tcp://HOST:PORT");
  require<ConfigError>(init.rank && init.world_size, "dist.init '", init.url,
                       "' needs dist.rank and dist.world_size beside it");
  Rendezvous r;
  r.host = rest.substr(0, colon);
  if (r.host.size() > 2 && r.host.front() == '[' && r.host.back() == ']')
    r.host = r.host.substr(1, r.host.size() - 2);  // an IPv6 address
  r.port = to_int("the port of dist.init", rest.substr(colon + 1), 1, 65535);
  r.world_size = *init.world_size;
  r.rank = *init.rank;
  require<ConfigError>(r.world_size >= 1 && r.rank >= 0 && r.rank < r.world_size, "dist.rank ",
                       r.rank, " does not fit dist.world_size ", r.world_size,
                       ": ranks run from 0 to world_size - 1");
  r.local_rank = env.number_or("LOCAL_RANK", 0, 0, kMostRanks);
  r.source = "dist.init";
  return r;
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (!value || !*value) return std::nullopt;
    return std::string(value);
  };
}

std::string first_slurm_host(const std::string& node_list) {
  std::string host;
  for (std::size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    const auto end = node_list.find_first_of(",-]", i + 1);
    host += node_list.substr(i + 1, end == std::string::npos ? end : end - i - 1);
    i = node_list.find(']', i);
    if (i == std::string::npos) break;
  }
  return host;
}

Rendezvous find_rendezvous(const ManualInit& init, const Environment& environment) {
  const Reader env(environment);
  if (init.url.starts_with("tcp://")) return from_url(init, env);
  require<ConfigError>(init.url.empty() || init.url == "env", "dist.init '", init.url,
                       "' is neither 'env' nor tcp://HOST:PORT");

  Rendezvous r;
  if (env.has("RANK") || env.has("WORLD_SIZE")) {
    fill_ranks(r, env, "RANK", "WORLD_SIZE", "LOCAL_RANK");
    r.source = env.has("TORCHELASTIC_RUN_ID") ? "torchrun" : "RANK and WORLD_SIZE";
    r.store_is_external = env.text_or("TORCHELASTIC_USE_AGENT_STORE", "") == "True";
    r.attempt = env.number_or("TORCHELASTIC_RESTART_COUNT", 0, 0, 2147483647);
  } else if (env.has("OMPI_COMM_WORLD_RANK")) {
    fill_ranks(r, env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
               "OMPI_COMM_WORLD_LOCAL_RANK");
    r.source = "OpenMPI";
  } else if (env.has("SLURM_PROCID") && env.number_or("SLURM_NTASKS", 1, 1, kMostRanks) > 1) {
    fill_ranks(r, env, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID");
    r.source = "SLURM";
  } else {
    r.source = "a single process";
    return r;
  }
  r.host = env.text_or("MASTER_ADDR", "");
  if (r.host.empty() && r.source == "SLURM")
    r.host = first_slurm_host(
        env.text_or("SLURM_JOB_NODELIST", env.text_or("SLURM_NODELIST", "127.0.0.1")));
  require<ConfigError>(
      !r.host.empty() || r.world_size == 1, "the environment has no MASTER_ADDR, so that ",
      r.world_size, " ranks cannot meet; set it to the host of rank 0 (127.0.0.1 on one machine)");
  // All ranks of a SLURM job derive the same port from the job's number.
  const int fallback = env.has("SLURM_JOB_ID") && r.source == "SLURM"
                           ? 20000 + env.number("SLURM_JOB_ID", 0, 2147483647) % 20000
                           : kDefaultPort;
  r.port = env.number_or("MASTER_PORT", fallback, 1, 65535);
  return r;
}

}  // namespace floe::comm
