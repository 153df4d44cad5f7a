#include "floe/comm/rendezvous.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "floe/core/error.h"

namespace floe::comm {
namespace {

std::optional<std::int64_t> whole_number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::int64_t number_between(const std::string& name, const std::string& text, std::int64_t least,
                            std::int64_t most) {
  const auto value = whole_number(text);
  require<ConfigError>(
      value && *value >= least && *value <= most, name, "='", text, "' is not a whole number from ",
      least, " to ", most,
      "; start the ranks with 'floe launch', torchrun, srun or mpirun, or set it right");
  return *value;
}

using Names = std::span<const char* const>;

// An environment whose empty variables are not set.
class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  std::optional<std::string> text(const std::string& name) const {
    auto value = environment_(name);
    if (value && value->empty()) value.reset();
    return value;
  }
  bool has(const std::string& name) const { return text(name).has_value(); }
  std::string text_or(const std::string& name, const std::string& fallback) const {
    return text(name).value_or(fallback);
  }
  // Of several names the first that is set; nullptr where none is.
  const char* first_set(Names names) const {
    for (const char* name : names)
      if (name && has(name)) return name;
    return nullptr;
  }
  std::int64_t number(const std::string& name, std::int64_t least, std::int64_t most) const {
    return number_between(name, text_or(name, ""), least, most);
  }
  std::int64_t number_or(const std::string& name, std::int64_t fallback, std::int64_t least,
                         std::int64_t most) const {
    return has(name) ? number(name, least, most) : fallback;
  }

 private:
  const Environment& environment_;
};

constexpr int kMostRanks = 1 << 20;
constexpr int kDefaultPort = 29500;
constexpr std::int64_t kMostOf32Bits = 0xffffffff;

// What a launcher leaves in the environment. Of several names the first that is set counts.
struct LauncherVariables {
  const char* launcher;
  const char *rank, *size;
  std::array<const char*, 2> local_rank;
  std::array<const char*, 2> job;
};

// torchrun, `floe launch`, or by hand.
constexpr LauncherVariables kRanks{
    "RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", {"LOCAL_RANK"}, {"TORCHELASTIC_RUN_ID"}};
constexpr std::array kMpiLaunchers{
    LauncherVariables{"Horovod", "HOROVOD_RANK", "HOROVOD_SIZE", {"HOROVOD_LOCAL_RANK"}, {}},
    LauncherVariables{"OpenMPI",
                      "OMPI_COMM_WORLD_RANK",
                      "OMPI_COMM_WORLD_SIZE",
                      {"OMPI_COMM_WORLD_LOCAL_RANK"},
                      {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"}},
    LauncherVariables{"MVAPICH",
                      "MV2_COMM_WORLD_RANK",
                      "MV2_COMM_WORLD_SIZE",
                      {"MV2_COMM_WORLD_LOCAL_RANK"},
                      {}}};
constexpr LauncherVariables kPmi{"PMI",
                                 "PMI_RANK",
                                 "PMI_SIZE",
                                 {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
                                 {"PMI_JOBID", "PMIX_NAMESPACE"}};
constexpr LauncherVariables kPmix{"PMIx",
                                  "PMIX_RANK",
                                  "OMPI_COMM_WORLD_SIZE",
                                  {"OMPI_COMM_WORLD_LOCAL_RANK"},
                                  {"PMIX_NAMESPACE"}};

void require_set(const Reader& env, const char* name, const char* meaning, const char* other) {
  require<ConfigError>(env.has(name), "the environment has no ", name, " (", meaning,
                       ") although it has ", other,
                       "; set it, or start the ranks with 'floe launch', torchrun, srun or mpirun");
}

// Everything but where rank 0 is.
Rendezvous place_by(const LauncherVariables& names, const Reader& env) {
  require_set(env, names.size, "the number of ranks", names.rank);
  require_set(env, names.rank, "the number of this rank", names.size);
  Rendezvous r;
  r.world_size = static_cast<int>(env.number(names.size, 1, kMostRanks));
  r.rank = static_cast<int>(env.number(names.rank, 0, r.world_size - 1));
  if (const char* local = env.first_set(names.local_rank))
    r.local_rank = static_cast<int>(env.number(local, 0, kMostRanks));
  const char* job = env.first_set(names.job);
  r.job = job ? str(names.launcher, " ", *env.text(job)) : env.text_or("FLOE_JOB_ID", "");
  r.source = names.launcher;
  return r;
}

struct SlurmStep {
  std::optional<std::int64_t> job;
  std::int64_t step = 0;
};

bool in_slurm_job(const Reader& env) { return env.has("SLURM_JOB_ID") || env.has("SLURM_JOBID"); }

// The step of srun that this process is a task of. Batch scripts and shells of salloc are none:
// they have no SLURM_STEP_ID, or one that no step of srun has (4294967291, also written as -5),
// although SLURM_PROCID is 0 and SLURM_NTASKS what the job asked for.
std::optional<SlurmStep> find_slurm_step(const Reader& env) {
  constexpr std::int64_t kLastStep = 0xfffffff0;
  const auto step = whole_number(env.text_or("SLURM_STEP_ID", env.text_or("SLURM_STEPID", "")));
  if (!env.has("SLURM_PROCID") || !step || *step < 0 || *step > kLastStep) return std::nullopt;
  SlurmStep found;
  found.step = *step;
  if (in_slurm_job(env))
    found.job =
        env.number(env.has("SLURM_JOB_ID") ? "SLURM_JOB_ID" : "SLURM_JOBID", 0, kMostOf32Bits);
  return found;
}

// All ranks of a step derive the same port, below those that kernels give to outgoing connections
// (from 32768). Steps of a job differ, and so do jobs that follow each other.
int slurm_port(const SlurmStep& step) {
  constexpr std::int64_t kFirst = 10'000, kCount = 20'000;
  constexpr std::int64_t kBetweenSteps = 7919;  // prime, so that all ports are used
  if (!step.job) return kDefaultPort;
  return static_cast<int>(kFirst + (*step.job + kBetweenSteps * step.step) % kCount);
}

Rendezvous place_by_srun(const SlurmStep& step, const Reader& env) {
  // SLURM_NTASKS may be the job's: srun --preserve-env.
  const bool of_step = env.has("SLURM_STEP_NUM_TASKS");
  Rendezvous r = place_by({"SLURM",
                           "SLURM_PROCID",
                           of_step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS",
                           {"SLURM_LOCALID"},
                           {}},
                          env);
  const auto restarts = env.number_or("SLURM_RESTART_COUNT", 0, 0, kMostOf32Bits);
  if (step.job)
    r.job = str("SLURM ", *step.job, ".", step.step, restarts ? str(" restart ", restarts) : "");
  constexpr std::array kNodeLists{"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"};
  const char* nodes = env.first_set(kNodeLists);
  r.host = nodes ? first_slurm_host(*env.text(nodes)) : "127.0.0.1";
  r.port = slurm_port(step);
  return r;
}

// As the launcher says it; nothing for a process that is alone. Of several launchers, one within
// the other, the innermost counts.
std::optional<Rendezvous> place_by_launcher(const Reader& env) {
  if (env.has("RANK") || env.has("WORLD_SIZE")) {
    LauncherVariables names = kRanks;
    const bool torchrun = env.has("TORCHELASTIC_RUN_ID");
    if (torchrun)
      names.launcher = "torchrun";
    else if (env.has("FLOE_LAUNCHED"))
      names.launcher = "floe launch";
    Rendezvous r = place_by(names, env);
    r.store_is_external = torchrun && env.text_or("TORCHELASTIC_USE_AGENT_STORE", "") == "True";
    return r;
  }
  for (const LauncherVariables& mpi : kMpiLaunchers)
    if (env.has(mpi.rank)) return place_by(mpi, env);

  // srun may set the variables of PMI and PMIx too; its own say more. But an mpiexec in a SLURM job
  // starts its daemons by srun, and then ranks find the variables of the daemons' step: mpiexec is
  // known by MPI_LOCALRANKID, prterun by a name space that is not SLURM's.
  const auto step = find_slurm_step(env);
  if (env.has(kPmi.rank) && (!step || env.has("MPI_LOCALRANKID"))) return place_by(kPmi, env);
  const std::string name_space = env.text_or("PMIX_NAMESPACE", step ? "slurm.pmix" : "");
  if (env.has(kPmix.rank) && !name_space.starts_with("slurm.pmix")) return place_by(kPmix, env);
  if (!step) return std::nullopt;
  Rendezvous r = place_by_srun(*step, env);
  if (r.world_size == 1) return std::nullopt;
  return r;
}

Rendezvous single_process(const Reader& env) {
  Rendezvous r;
  r.job = env.text_or("FLOE_JOB_ID", "");
  r.source = in_slurm_job(env) && !find_slurm_step(env)
                 ? "a single process (in a SLURM job without srun)"
                 : "a single process";
  return r;
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
  r.port =
      static_cast<int>(number_between("the port of dist.init", rest.substr(colon + 1), 1, 65535));
  r.world_size = *init.world_size;
  r.rank = *init.rank;
  require<ConfigError>(r.world_size >= 1 && r.rank >= 0 && r.rank < r.world_size, "dist.rank ",
                       r.rank, " does not fit dist.world_size ", r.world_size,
                       ": ranks run from 0 to world_size - 1");
  r.local_rank = static_cast<int>(env.number_or("LOCAL_RANK", 0, 0, kMostRanks));
  r.job = env.text_or("FLOE_JOB_ID", "");
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
  const auto place = place_by_launcher(env);
  if (!place) return single_process(env);
  Rendezvous r = *place;
  r.host = env.text_or("MASTER_ADDR", r.host);
  require<ConfigError>(
      !r.host.empty() || r.world_size == 1, "the environment has no MASTER_ADDR, so that ",
      r.world_size, " ranks cannot meet; set it to the host of rank 0 (127.0.0.1 on one machine)");
  r.port = static_cast<int>(env.number_or("MASTER_PORT", r.port ? r.port : kDefaultPort, 1, 65535));
  return r;
}

}  // namespace floe::comm
