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
  // What scheduler or launcher calls this job, on all its ranks the same; ranks of different jobs
  // never meet. Empty: unknown.
  std::string job;
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

// `init` is "env" or "tcp://HOST:PORT". With "env", in this order, which lets the innermost of
// several launchers decide:
//   torchrun, `floe launch`, by hand   RANK, WORLD_SIZE, LOCAL_RANK
//   horovodrun                         HOROVOD_RANK, ..._SIZE, ..._LOCAL_RANK
//   OpenMPI                            OMPI_COMM_WORLD_RANK, ..._SIZE, ..._LOCAL_RANK
//   MVAPICH                            MV2_COMM_WORLD_RANK, ..._SIZE, ..._LOCAL_RANK
//   MPICH, Intel MPI                   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID
//   PMIx                               PMIX_RANK, OMPI_COMM_WORLD_SIZE
//   srun                               SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID
// else a single process; also in a SLURM job where no srun has started it, and `source` says so.
// Rank 0 is at MASTER_ADDR and MASTER_PORT. Without them srun's is at the first host of its step,
// at a port that follows from job and step; MASTER_PORT is else 29500.
// `job` is the launcher's own name for it (torchrun's run id, SLURM's job and step, ...); where it
// has none, and by hand, FLOE_JOB_ID. A variable that is empty counts as unset.
// Throws ConfigError that names the variable which is missing, not a number or out of range.
Rendezvous find_rendezvous(const ManualInit& init, const Environment& environment);

// The first host of a SLURM node list: "gpu[003-007,9],cpu1" → "gpu003",
// "r[1-2]n[04-07]" → "r1n04".
std::string first_slurm_host(const std::string& node_list);

}  // namespace floe::comm
