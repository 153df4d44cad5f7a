#include "floe/comm/rendezvous.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "floe/core/error.h"
#include "floe/launch/environment.h"
#include "floe/launch/launch.h"

namespace floe::comm::rendezvous_test {
namespace {

using Settings = std::map<std::string, std::string>;

Environment environment(Settings variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

Rendezvous find(const Settings& variables, const ManualInit& init = {}) {
  return find_rendezvous(init, environment(variables));
}

Settings with(Settings settings, const Settings& more) {
  for (const auto& [name, value] : more) settings[name] = value;
  return settings;
}

Settings without(Settings settings, const std::string& name) {
  settings.erase(name);
  return settings;
}

// `says`: parts of the message, all of them.
void expect_refused(const Settings& variables, const ManualInit& init,
                    const std::vector<std::string>& says) {
  SCOPED_TRACE(join(says, " / "));
  try {
    const Rendezvous r = find(variables, init);
    ADD_FAILURE() << "accepted as rank " << r.rank << " of " << r.world_size;
  } catch (const ConfigError& e) {
    for (const auto& part : says)
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    EXPECT_EQ(e.exit(), Exit::usage);
  }
}

TEST(Rendezvous, NothingSetIsASingleProcess) {
  for (const std::string url : {"", "env"}) {
    const Rendezvous r = find({{"HOME", "/"}}, {.url = url});
    EXPECT_EQ(r.rank, 0);
    EXPECT_EQ(r.world_size, 1);
    EXPECT_EQ(r.local_rank, 0);
    EXPECT_EQ(r.host, "");
    EXPECT_FALSE(r.store_is_external);
    EXPECT_EQ(r.job, "");
    EXPECT_EQ(r.source, "a single process");
  }
}

TEST(Rendezvous, Torchrun) {
  const Settings torchrun{{"RANK", "11"},           {"WORLD_SIZE", "16"},
                          {"LOCAL_RANK", "3"},      {"MASTER_ADDR", "node7"},
                          {"MASTER_PORT", "29400"}, {"TORCHELASTIC_RUN_ID", "none"}};
  const Rendezvous r = find(torchrun);
  EXPECT_EQ(r.rank, 11);
  EXPECT_EQ(r.world_size, 16);
  EXPECT_EQ(r.local_rank, 3);
  EXPECT_EQ(r.host, "node7");
  EXPECT_EQ(r.port, 29400);
  EXPECT_EQ(r.source, "torchrun");
  EXPECT_EQ(r.job, "torchrun none");
  EXPECT_FALSE(r.store_is_external);
  EXPECT_EQ(find(with(torchrun, {{"TORCHELASTIC_RUN_ID", "2f8a"}})).job, "torchrun 2f8a");

  Settings with_store = torchrun;
  with_store["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_TRUE(find(with_store).store_is_external);
  // Each agent counts its own restarts, so ranks of two hosts may read two numbers.
  with_store["TORCHELASTIC_RESTART_COUNT"] = "3";
  EXPECT_EQ(find(with_store).job, r.job);
  with_store["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_FALSE(find(with_store).store_is_external);
}

// What `floe launch` really sets.
TEST(Rendezvous, FloeLaunch) {
  Settings variables;
  for (const auto& [name, value] :
       launch::rank_environment(2, 3, 23456, /*prefixed=*/true, "a1b2c3"))
    variables[name] = value;
  const Rendezvous r = find(variables);
  EXPECT_EQ(r.rank, 2);
  EXPECT_EQ(r.world_size, 3);
  EXPECT_EQ(r.local_rank, 2);
  EXPECT_EQ(r.host, "127.0.0.1");
  EXPECT_EQ(r.port, 23456);
  EXPECT_EQ(r.job, "a1b2c3");
  EXPECT_EQ(r.source, "floe launch");
  EXPECT_FALSE(r.store_is_external);
}

// FLOE_JOB_ID of all ranks of a launch.
std::multiset<std::string> jobs_of_a_launch(const launch::Variables& environment) {
  char folder[] = "/tmp/floe-rendezvous-XXXXXX";
  if (!mkdtemp(folder)) throw Error("mkdtemp failed");
  launch::LaunchOptions options;
  options.command = {"/bin/sh", "-c", str("echo $FLOE_JOB_ID > ", folder, "/$RANK")};
  options.num_ranks = 2;
  options.environment = environment;
  EXPECT_EQ(launch::launch(options).exit_code(), 0);
  std::multiset<std::string> jobs;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path());
    std::string job;
    std::getline(file, job);
    jobs.insert(job);
  }
  std::filesystem::remove_all(folder);
  return jobs;
}

TEST(Rendezvous, EachLaunchIsAJobOfItsOwn) {
  setenv("FLOE_JOB_ID", "of a launch around this one", 1);
  const auto first = jobs_of_a_launch({}), second = jobs_of_a_launch({});
  for (const auto& jobs : {first, second}) {
    ASSERT_EQ(jobs.size(), 2U);
    EXPECT_EQ(jobs.count(*jobs.begin()), 2U);
    EXPECT_EQ(jobs.begin()->size(), 16U);
    EXPECT_EQ(jobs.begin()->find_first_not_of("0123456789abcdef"), std::string::npos);
  }
  EXPECT_NE(first, second);
  const std::multiset<std::string> mine{"mine", "mine"};
  EXPECT_EQ(jobs_of_a_launch({{"FLOE_JOB_ID", "mine"}}), mine);
  unsetenv("FLOE_JOB_ID");
}

// `floe launch` in a rank of torchrun: the ranks of `floe launch` are none of torchrun's.
TEST(Rendezvous, FloeLaunchWithinTorchrun) {
  setenv("TORCHELASTIC_RUN_ID", "outer", 1);
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  Settings variables;
  for (const std::string& entry :
       launch::merged_environment(launch::rank_environment(0, 2, 23456, true, "inner")))
    variables[entry.substr(0, entry.find('='))] = entry.substr(entry.find('=') + 1);
  unsetenv("TORCHELASTIC_RUN_ID");
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  EXPECT_EQ(find(variables).source, "floe launch");
  EXPECT_EQ(find(variables).job, "inner");
  EXPECT_FALSE(find(variables).store_is_external);

  // And torchrun in a rank of `floe launch`.
  const Rendezvous r = find(with(variables, {{"TORCHELASTIC_RUN_ID", "none"}}));
  EXPECT_EQ(r.source, "torchrun");
  EXPECT_EQ(r.job, "torchrun none");
}

TEST(Rendezvous, RanksByHandInTheEnvironment) {
  const Rendezvous r = find({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "::1"}});
  EXPECT_EQ(r.local_rank, 0);
  EXPECT_EQ(r.host, "::1");
  EXPECT_EQ(r.port, 29500);
  EXPECT_EQ(r.job, "");
  EXPECT_EQ(r.source, "RANK and WORLD_SIZE");
}

TEST(Rendezvous, AJobByHand) {
  const Settings job{{"FLOE_JOB_ID", "monday"}};
  const Settings ranks{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}};
  EXPECT_EQ(find(with(ranks, job)).job, "monday");
  EXPECT_EQ(find(job).job, "monday");
  EXPECT_EQ(find(job, {.url = "tcp://h:80", .rank = 0, .world_size = 2}).job, "monday");
  EXPECT_EQ(find({}, {.url = "tcp://h:80", .rank = 0, .world_size = 2}).job, "");
}

TEST(Rendezvous, AWorldOfOneNeedsNoHost) {
  EXPECT_EQ(find({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).host, "");
  EXPECT_EQ(find({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}).world_size, 1);
}

const Settings kOpenMpi{{"OMPI_COMM_WORLD_RANK", "5"},
                        {"OMPI_COMM_WORLD_SIZE", "8"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                        {"PMIX_RANK", "5"},
                        {"PMIX_NAMESPACE", "prterun-n7-41@1"},
                        {"MASTER_ADDR", "10.0.0.1"},
                        {"MASTER_PORT", "1234"}};
// horovodrun --gloo
const Settings kHorovod{{"HOROVOD_RANK", "5"},       {"HOROVOD_SIZE", "8"},
                        {"HOROVOD_LOCAL_RANK", "1"}, {"HOROVOD_LOCAL_SIZE", "4"},
                        {"HOROVOD_CROSS_RANK", "1"}, {"MASTER_ADDR", "10.0.0.1"},
                        {"MASTER_PORT", "1234"}};
const Settings kMvapich{{"MV2_COMM_WORLD_RANK", "5"},
                        {"MV2_COMM_WORLD_SIZE", "8"},
                        {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                        {"MASTER_ADDR", "10.0.0.1"},
                        {"MASTER_PORT", "1234"}};
// mpiexec of MPICH and Intel MPI
const Settings kHydra{{"PMI_RANK", "5"},        {"PMI_SIZE", "8"},
                      {"PMI_FD", "9"},          {"MPI_LOCALRANKID", "1"},
                      {"MPI_LOCALNRANKS", "4"}, {"MASTER_ADDR", "10.0.0.1"},
                      {"MASTER_PORT", "1234"}};
const Settings kPrterun{{"PMIX_RANK", "5"},
                        {"PMIX_NAMESPACE", "prterun-n7-41@1"},
                        {"OMPI_COMM_WORLD_SIZE", "8"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"MASTER_ADDR", "10.0.0.1"},
                        {"MASTER_PORT", "1234"}};

TEST(Rendezvous, LaunchersOfMpi) {
  const std::map<std::string, std::pair<Settings, std::string>> launchers{
      {"OpenMPI", {kOpenMpi, "OpenMPI prterun-n7-41@1"}},
      {"Horovod", {kHorovod, ""}},
      {"MVAPICH", {kMvapich, ""}},
      {"PMI", {kHydra, ""}},
      {"PMIx", {kPrterun, "PMIx prterun-n7-41@1"}},
  };
  for (const auto& [source, launcher] : launchers) {
    SCOPED_TRACE(source);
    const auto& [variables, job] = launcher;
    const Rendezvous r = find(variables);
    EXPECT_EQ(r.rank, 5);
    EXPECT_EQ(r.world_size, 8);
    EXPECT_EQ(r.local_rank, 1);
    EXPECT_EQ(r.host, "10.0.0.1");
    EXPECT_EQ(r.port, 1234);
    EXPECT_EQ(r.job, job);
    EXPECT_EQ(r.source, source);
    EXPECT_FALSE(r.store_is_external);

    EXPECT_EQ(find(without(variables, "MASTER_PORT")).port, 29500);
    expect_refused(without(variables, "MASTER_ADDR"), {}, {"no MASTER_ADDR", "8 ranks"});
    // What the user calls the job counts where the launcher has no name for it.
    EXPECT_EQ(find(with(variables, {{"FLOE_JOB_ID", "monday"}})).job, job.empty() ? "monday" : job);
  }
}

TEST(Rendezvous, JobsOfMpi) {
  EXPECT_EQ(find(with(kOpenMpi, {{"OMPI_MCA_ess_base_jobid", "2938175489"}})).job,
            "OpenMPI 2938175489");
  EXPECT_EQ(find(without(kOpenMpi, "PMIX_NAMESPACE")).job, "");
  EXPECT_EQ(find(with(kHydra, {{"PMI_JOBID", "77"}})).job, "PMI 77");
  EXPECT_EQ(find(with(kHydra, {{"PMIX_NAMESPACE", "n"}})).job, "PMI n");
  EXPECT_EQ(find(with(kHydra, {{"HYDI_CONTROL_FD", "6"}})).job, "");
}

TEST(Rendezvous, LocalRanksOfPmi) {
  const Settings cray = with(without(kHydra, "MPI_LOCALRANKID"), {{"PMI_LOCAL_RANK", "3"}});
  EXPECT_EQ(find(cray).local_rank, 3);
  EXPECT_EQ(find(with(cray, {{"MPI_LOCALRANKID", "2"}})).local_rank, 2);
  EXPECT_EQ(find(without(kHydra, "MPI_LOCALRANKID")).local_rank, 0);
}

// A world of one that trains beside seven others of its kind would be worse than an error.
TEST(Rendezvous, ARankWithoutAWorldIsRefused) {
  for (const auto& [variables, size, rank] :
       {std::tuple{kOpenMpi, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
        {kHorovod, "HOROVOD_SIZE", "HOROVOD_RANK"},
        {kMvapich, "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
        {kHydra, "PMI_SIZE", "PMI_RANK"},
        {kPrterun, "OMPI_COMM_WORLD_SIZE", "PMIX_RANK"}}) {
    const std::vector<std::string> says{str("has no ", size, " (the number of ranks)"),
                                        str("although it has ", rank), "set it, or start"};
    expect_refused(without(variables, size), {}, says);
    expect_refused(with(variables, {{size, ""}}), {}, says);
    expect_refused(with(variables, {{rank, "8"}}), {}, {str(rank, "='8'"), "from 0 to 7"});
    expect_refused(with(variables, {{rank, "one"}}), {}, {str(rank, "='one'")});
    expect_refused(with(variables, {{size, "0"}}), {}, {str(size, "='0'"), "from 1 to"});
  }
}

// A task of `srun -w gpu[005-006] -n 16`, the first step of a job on more nodes.
const Settings kSlurm{{"SLURM_PROCID", "5"},
                      {"SLURM_STEP_NUM_TASKS", "16"},
                      {"SLURM_NTASKS", "16"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_JOB_ID", "1234567"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_RESTART_COUNT", "0"},
                      {"SLURM_STEP_NODELIST", "gpu[005-006]"},
                      {"SLURM_JOB_NODELIST", "gpu[003-007,9],cpu1"}};
// A batch script of a job with 16 tasks.
const Settings kBatch{{"SLURM_PROCID", "0"},
                      {"SLURM_NTASKS", "16"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_JOB_ID", "1234567"},
                      {"SLURM_JOB_NODELIST", "gpu[003-007,9],cpu1"}};
constexpr const char* kWithoutSrun = "a single process (in a SLURM job without srun)";

TEST(Rendezvous, Slurm) {
  const Rendezvous r = find(kSlurm);
  EXPECT_EQ(r.rank, 5);
  EXPECT_EQ(r.world_size, 16);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.host, "gpu005");
  EXPECT_EQ(r.port, 10000 + 1234567 % 20000);
  EXPECT_EQ(r.job, "SLURM 1234567.0");
  EXPECT_EQ(r.source, "SLURM");
}

// The step's numbers count, the job's only where the step has none.
TEST(Rendezvous, SlurmStepsWithinAJob) {
  EXPECT_EQ(find(with(kSlurm, {{"SLURM_NTASKS", "64"}})).world_size, 16);
  EXPECT_EQ(find(with(kSlurm, {{"SLURM_NTASKS", "many"}})).world_size, 16);
  EXPECT_EQ(find(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", ""}, {"SLURM_NTASKS", "8"}})).world_size,
            8);
  EXPECT_EQ(find(without(kSlurm, "SLURM_STEP_NODELIST")).host, "gpu003");
  const Settings old = with(without(without(kSlurm, "SLURM_STEP_NODELIST"), "SLURM_JOB_NODELIST"),
                            {{"SLURM_NODELIST", "n[2,4]"}});
  EXPECT_EQ(find(old).host, "n2");
  EXPECT_EQ(find(without(old, "SLURM_NODELIST")).host, "127.0.0.1");
  const Settings older = with(without(without(kSlurm, "SLURM_STEP_ID"), "SLURM_JOB_ID"),
                              {{"SLURM_STEPID", "3"}, {"SLURM_JOBID", "8"}});
  EXPECT_EQ(find(older).job, "SLURM 8.3");
}

TEST(Rendezvous, SlurmJobs) {
  EXPECT_EQ(find(with(kSlurm, {{"SLURM_STEP_ID", "7"}})).job, "SLURM 1234567.7");
  EXPECT_EQ(find(with(kSlurm, {{"SLURM_RESTART_COUNT", "2"}})).job, "SLURM 1234567.0 restart 2");
  EXPECT_EQ(find(without(kSlurm, "SLURM_RESTART_COUNT")).job, "SLURM 1234567.0");
  EXPECT_EQ(find(with(kSlurm, {{"FLOE_JOB_ID", "monday"}})).job, "SLURM 1234567.0");
  EXPECT_EQ(find(without(kSlurm, "SLURM_JOB_ID")).job, "");
}

TEST(Rendezvous, SlurmPortsAreUsable) {
  const auto port = [](const std::string& job, const std::string& step) {
    return find(with(kSlurm, {{"SLURM_JOB_ID", job}, {"SLURM_STEP_ID", step}})).port;
  };
  for (const std::string job : {"0", "1", "19999", "20000", "2147483647", "4294967295"})
    for (const std::string step : {"0", "1", "2", "19999", "4294967280"}) {
      EXPECT_GE(port(job, step), 10000) << job << "." << step;
      EXPECT_LT(port(job, step), 30000) << job << "." << step;
    }
  std::set<int> ports;
  for (int job = 41; job < 51; ++job)
    for (int step = 0; step < 20; ++step) ports.insert(port(str(job), str(step)));
  EXPECT_EQ(ports.size(), 200U) << "jobs that follow each other, and their steps";
  EXPECT_EQ(find(without(kSlurm, "SLURM_JOB_ID")).port, 29500);
}

TEST(Rendezvous, SlurmsGuessesGiveWay) {
  const Rendezvous r = find(with(kSlurm, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "7"}}));
  EXPECT_EQ(r.host, "head");
  EXPECT_EQ(r.port, 7);
}

TEST(Rendezvous, OneTaskOfSlurmIsASingleProcess) {
  const Rendezvous r = find(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}));
  EXPECT_EQ(r.world_size, 1);
  EXPECT_EQ(r.host, "");
  EXPECT_EQ(r.source, "a single process");
}

// Batch scripts and shells of salloc have numbers of tasks that nobody has started.
TEST(Rendezvous, ASlurmJobWithoutSrunIsASingleProcess) {
  const auto expect_alone = [](const Settings& variables) {
    const Rendezvous r = find(variables);
    EXPECT_EQ(r.rank, 0);
    EXPECT_EQ(r.world_size, 1);
    EXPECT_EQ(r.host, "");
    EXPECT_EQ(r.source, kWithoutSrun);
  };
  expect_alone(kBatch);
  for (const std::string step : {"4294967291", "-5", "4294967290", "-6", "4294967292", "batch",
                                 "interactive", "", "0x0", "99999999999999999999"}) {
    SCOPED_TRACE(step);
    expect_alone(with(kBatch, {{"SLURM_STEP_ID", step}}));
  }
  expect_alone(with(kBatch, {{"SLURM_NTASKS", "1"}}));
  expect_alone(without(kBatch, "SLURM_NTASKS"));
  expect_alone({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}});  // salloc on a login node
  expect_alone({{"SLURM_JOBID", "7"}});
  // sbatch hands on the environment of the shell, which may be a task of another job.
  expect_alone(with(kBatch, {{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "slurm.pmix.7.0"}}));
  EXPECT_EQ(find(without(kBatch, "SLURM_JOB_ID")).source, "a single process");

  // Where the script starts ranks by another launcher, that one counts.
  EXPECT_EQ(find(with(kBatch, kOpenMpi)).source, "OpenMPI");
  EXPECT_EQ(find(with(kBatch, kHydra)).source, "PMI");
  EXPECT_EQ(find(with(kBatch, kPrterun)).source, "PMIx");
  EXPECT_EQ(find(with(kBatch, {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}})).rank, 1);
}

// srun --mpi=pmi2, --mpi=pmix and Cray's set variables of PMI beside SLURM's.
TEST(Rendezvous, SrunThatSpeaksPmi) {
  const Settings pmi2{{"PMI_RANK", "5"}, {"PMI_SIZE", "16"}, {"PMI_JOBID", "1234567.0"}};
  for (const Settings& more :
       {pmi2, with(pmi2, {{"PMI_LOCAL_RANK", "1"}}),
        Settings{{"PMIX_RANK", "5"}, {"PMIX_NAMESPACE", "slurm.pmix.1234567.0"}},
        Settings{{"PMIX_RANK", "5"}}}) {
    const Rendezvous r = find(with(kSlurm, more));
    EXPECT_EQ(r.rank, 5);
    EXPECT_EQ(r.world_size, 16);
    EXPECT_EQ(r.local_rank, 1);
    EXPECT_EQ(r.host, "gpu005");
    EXPECT_EQ(r.job, "SLURM 1234567.0");
    EXPECT_EQ(r.source, "SLURM");
    // srun --pty: one task.
    const Settings shell{{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}};
    EXPECT_EQ(find(with(with(kSlurm, more), shell)).source, "a single process");
  }
}

// An mpiexec in a SLURM job starts one daemon per node by srun; its ranks see that step's numbers.
TEST(Rendezvous, DaemonsThatSrunHasStarted) {
  const Settings daemon = with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "2"},
                                        {"SLURM_NTASKS", "2"},
                                        {"SLURM_PROCID", "1"},
                                        {"SLURM_LOCALID", "0"}});
  for (const auto& [source, variables] : std::map<std::string, Settings>{{"OpenMPI", kOpenMpi},
                                                                         {"Horovod", kHorovod},
                                                                         {"MVAPICH", kMvapich},
                                                                         {"PMI", kHydra},
                                                                         {"PMIx", kPrterun}}) {
    SCOPED_TRACE(source);
    const Rendezvous r = find(with(daemon, variables));
    EXPECT_EQ(r.source, source);
    EXPECT_EQ(r.rank, 5);
    EXPECT_EQ(r.world_size, 8);
    EXPECT_EQ(r.local_rank, 1);
    EXPECT_EQ(r.job, find(variables).job);
    // SLURM's guesses are about its own ranks.
    expect_refused(without(with(daemon, variables), "MASTER_ADDR"), {}, {"no MASTER_ADDR"});
  }
}

TEST(Rendezvous, TheInnermostLauncherWins) {
  EXPECT_EQ(find(with(kSlurm, kOpenMpi)).source, "OpenMPI");
  EXPECT_EQ(find(with(kHydra, kHorovod)).source, "Horovod");
  const Settings all = with(with(with(with(kSlurm, kHydra), kOpenMpi), kHorovod), kMvapich);
  const Settings torchrun{{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"TORCHELASTIC_RUN_ID", "none"}};
  const Rendezvous r = find(with(all, torchrun));
  EXPECT_EQ(r.rank, 3);
  EXPECT_EQ(r.world_size, 4);
  EXPECT_EQ(r.local_rank, 0) << "not that of another launcher";
  EXPECT_EQ(r.job, "torchrun none");
  EXPECT_EQ(r.source, "torchrun");
  // `floe launch` in a batch script.
  Settings launched = kBatch;
  for (const auto& [name, value] : launch::rank_environment(1, 2, 23456, true, "a1b2"))
    launched[name] = value;
  EXPECT_EQ(find(launched).source, "floe launch");
  EXPECT_EQ(find(launched).job, "a1b2");
  EXPECT_EQ(find(launched).host, "127.0.0.1");
}

TEST(Rendezvous, SlurmNodeLists) {
  const std::map<std::string, std::string> first{
      {"gpu[003-007,9],cpu1", "gpu003"},
      {"cpu1,gpu[003-007]", "cpu1"},
      {"node17", "node17"},
      {"a,b,c", "a"},
      {"n[12]", "n12"},
      {"n[8,10-12]", "n8"},
      {"ip-10-0-0-[11-14]", "ip-10-0-0-11"},
      {"gpu-[01-02].cluster,login", "gpu-01.cluster"},
      {"rack[2-3]node[07-09]", "rack2node07"},
      {"rack[2-3]node[07-09],x", "rack2node07"},
  };
  for (const auto& [list, host] : first) EXPECT_EQ(first_slurm_host(list), host) << list;
  // Damaged lists end in some text, never in a crash.
  for (const std::string list : {"", "[", "]", "n[", "n[]", "n[1", "n]", ",", "n[1-", "n[,]x[3"})
    EXPECT_NO_THROW(first_slurm_host(list)) << list;
}

TEST(Rendezvous, ByHand) {
  const Rendezvous r = find({{"RANK", "7"}, {"LOCAL_RANK", "2"}},
                            {.url = "tcp://head.example:4567", .rank = 1, .world_size = 2});
  EXPECT_EQ(r.rank, 1);
  EXPECT_EQ(r.world_size, 2);
  EXPECT_EQ(r.local_rank, 2);
  EXPECT_EQ(r.host, "head.example");
  EXPECT_EQ(r.port, 4567);
  EXPECT_FALSE(r.store_is_external);
  EXPECT_EQ(r.source, "dist.init");
  EXPECT_EQ(find({}, {.url = "tcp://[::1]:80", .rank = 0, .world_size = 1}).host, "::1");
}

TEST(Rendezvous, EmptyVariablesCountAsUnset) {
  setenv("FLOE_TEST_EMPTY", "", 1);
  setenv("FLOE_TEST_FULL", "x", 1);
  EXPECT_FALSE(process_environment()("FLOE_TEST_EMPTY"));
  EXPECT_FALSE(process_environment()("FLOE_TEST_NOT_THERE"));
  EXPECT_EQ(process_environment()("FLOE_TEST_FULL"), "x");

  Settings empty;
  for (const Settings& launcher : {kOpenMpi, kHorovod, kMvapich, kHydra, kPrterun, kSlurm})
    for (const auto& [name, value] : launcher) empty[name] = "";
  for (const char* name : {"RANK", "WORLD_SIZE", "FLOE_JOB_ID", "TORCHELASTIC_RUN_ID"})
    empty[name] = "";
  EXPECT_EQ(find(empty).source, "a single process");
  EXPECT_EQ(find(with(kSlurm, {{"MASTER_ADDR", ""}, {"MASTER_PORT", ""}})).host, "gpu005");
  EXPECT_EQ(find(with(kSlurm, {{"SLURM_STEP_NODELIST", ""}})).host, "gpu003");
  EXPECT_EQ(find(with(kHydra, {{"PMI_JOBID", ""}, {"FLOE_JOB_ID", "monday"}})).job, "monday");
}

ManualInit by_hand(const std::string& url, std::optional<int> rank = {},
                   std::optional<int> world_size = {}) {
  return {url, rank, world_size};
}

const Settings kRanks{{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}};

TEST(Rendezvous, WrongInputsSayWhatToChange) {
  expect_refused(without(kRanks, "WORLD_SIZE"), {},
                 {"the environment has no WORLD_SIZE", "floe launch"});
  expect_refused(without(kRanks, "RANK"), {}, {"the environment has no RANK", "set it"});
  expect_refused(with(kRanks, {{"RANK", "x"}}), {}, {"RANK='x' is not a whole number from 0 to 3"});
  expect_refused(with(kRanks, {{"RANK", "-1"}}), {}, {"RANK='-1'", "from 0 to 3"});
  expect_refused(with(kRanks, {{"RANK", "4"}}), {}, {"RANK='4'", "from 0 to 3"});
  expect_refused(with(kRanks, {{"RANK", "1 "}}), {}, {"RANK='1 '"});
  expect_refused(with(kRanks, {{"WORLD_SIZE", "0"}}), {}, {"WORLD_SIZE='0'", "from 1 to"});
  expect_refused(with(kRanks, {{"WORLD_SIZE", "-2"}}), {}, {"WORLD_SIZE='-2'"});
  expect_refused(with(kRanks, {{"WORLD_SIZE", "2.0"}}), {}, {"WORLD_SIZE='2.0'"});
  expect_refused(with(kRanks, {{"WORLD_SIZE", "99999999999"}}), {}, {"WORLD_SIZE='99999999999'"});
  expect_refused(with(kRanks, {{"LOCAL_RANK", "-1"}}), {}, {"LOCAL_RANK='-1'"});
  expect_refused(with(kRanks, {{"LOCAL_RANK", "gpu0"}}), {}, {"LOCAL_RANK='gpu0'"});
  expect_refused(without(kRanks, "MASTER_ADDR"), {},
                 {"no MASTER_ADDR", "4 ranks", "host of rank 0"});
  expect_refused(with(kRanks, {{"MASTER_PORT", "0"}}), {}, {"MASTER_PORT='0'", "from 1 to 65535"});
  expect_refused(with(kRanks, {{"MASTER_PORT", "65536"}}), {}, {"MASTER_PORT='65536'"});
  expect_refused(with(kRanks, {{"MASTER_PORT", "http"}}), {}, {"MASTER_PORT='http'"});
  expect_refused(with(kSlurm, {{"SLURM_PROCID", "16"}}), {}, {"SLURM_PROCID='16'", "from 0 to 15"});
  expect_refused(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "many"}}), {},
                 {"SLURM_STEP_NUM_TASKS='many'"});
  expect_refused(without(without(kSlurm, "SLURM_STEP_NUM_TASKS"), "SLURM_NTASKS"), {},
                 {"has no SLURM_NTASKS", "although it has SLURM_PROCID"});
  expect_refused(with(kSlurm, {{"SLURM_RESTART_COUNT", "-1"}}), {}, {"SLURM_RESTART_COUNT='-1'"});
  expect_refused(with(kSlurm, {{"SLURM_LOCALID", "x"}}), {}, {"SLURM_LOCALID='x'"});
  expect_refused(with(kSlurm, {{"SLURM_JOB_ID", "12a"}}), {}, {"SLURM_JOB_ID='12a'"});
  expect_refused({}, by_hand("file:///tmp/x"), {"dist.init 'file:///tmp/x'", "tcp://HOST:PORT"});
  expect_refused({}, by_hand("tcp:/h:1"), {"neither 'env' nor tcp://HOST:PORT"});
  expect_refused({}, by_hand("tcp://h", 0, 1), {"'tcp://h' has no port"});
  expect_refused({}, by_hand("tcp://", 0, 1), {"has no port"});
  expect_refused({}, by_hand("tcp://:80", 0, 1), {"tcp://HOST:PORT"});
  expect_refused({}, by_hand("tcp://h:", 0, 1), {"the port of dist.init=''"});
  expect_refused({}, by_hand("tcp://h:0", 0, 1), {"port", "from 1 to 65535"});
  expect_refused({}, by_hand("tcp://h:70000", 0, 1), {"'70000'"});
  expect_refused({}, by_hand("tcp://h:80", {}, 2), {"dist.rank and dist.world_size"});
  expect_refused({}, by_hand("tcp://h:80", 0), {"dist.rank and dist.world_size"});
  expect_refused({}, by_hand("tcp://h:80", 2, 2), {"dist.rank 2", "world_size 2"});
  expect_refused({}, by_hand("tcp://h:80", -1, 2), {"dist.rank -1"});
  expect_refused({}, by_hand("tcp://h:80", 0, 0), {"world_size 0"});
  expect_refused({{"LOCAL_RANK", "?"}}, by_hand("tcp://h:80", 0, 2), {"LOCAL_RANK='?'"});
}

TEST(LaunchPorts, AvoidTheEphemeralRange) {
  const auto range = [](const std::string& ephemeral) {
    const launch::PortRange r = launch::ports_to_listen_at(ephemeral);
    return std::pair(r.first, r.last);
  };
  const std::pair all(10'000, 32'000);
  EXPECT_EQ(range("32768\t60999\n"), all);
  EXPECT_EQ(range("1024 9999"), all);
  EXPECT_EQ(range("32001 32001"), all);
  EXPECT_EQ(range("32000 65535"), std::pair(10'000, 31'999));
  EXPECT_EQ(range("15000 61000"), std::pair(10'000, 14'999));
  EXPECT_EQ(range("9000 10000"), std::pair(10'001, 32'000));
  EXPECT_EQ(range("1024 20000"), std::pair(20'001, 32'000));
  EXPECT_EQ(range("12000 13000"), std::pair(13'001, 32'000));
  EXPECT_EQ(range("30000 31000"), std::pair(10'000, 29'999));
  // Nothing, or next to nothing, is left; or the numbers are none.
  for (const std::string text :
       {"1024 65535", "10000 32000", "10500 65535", "", "x", "5", "20000 15000", "-5 20000",
        "0 99999", "2147483647 2147483647", "99999999999 99999999999"})
    EXPECT_EQ(range(text), all) << text;
}

TEST(LaunchPorts, CanBeListenedAt) {
  const int port = launch::free_port();
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(listen(fd, 1), 0);
  close(fd);
}

}  // namespace
}  // namespace floe::comm::rendezvous_test
