// Who am I, and where do we meet? Read from what the launcher left in the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace floe::comm {

struct Rendezvous {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // index of the device on this machine
  std::string host;    // where rank 0's store listens; empty for a single process
  int port = 0;
  bool store_is_external = false;  // torchrun's agent already serves a store at host:port
  int attempt = 0;     // how often torchrun has started the ranks again; its store stays
  std::string source;  // what said so: "torchrun", "SLURM", ... for the log
};

// By hand: `tcp://HOST:PORT` with rank and world size from the configuration.
struct ManualInit {
  std::string url;
  std::optional<int> rank, world_size;
};

// Looks up one variable; empty when it is not set. Tests pass their own.
using Environment = std::function<std::optional<std::string>(const std::string&)>;
Environment process_environment();

// `init` is "env" or "tcp://HOST:PORT". With "env", in this order: torchrun and `floe launch`
// (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), OpenMPI and Horovod
// (OMPI_COMM_WORLD_RANK, ..._SIZE, ..._LOCAL_RANK), SLURM (SLURM_PROCID, SLURM_NTASKS,
// SLURM_LOCALID, SLURM_JOB_NODELIST); else a single process.
// Throws ConfigError that names the variable which is missing, not a number or out of range.
Rendezvous find_rendezvous(const ManualInit& init, const Environment& environment);

// The first host of a SLURM node list: "gpu[003-007,9],cpu1" → "gpu003",
// "r[1-2]n[04-07]" → "r1n04".
std::string first_slurm_host(const std::string& node_list);

}  // namespace floe::comm
