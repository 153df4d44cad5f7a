#include "floe/comm/rendezvous.h"

#include <gtest/gtest.h>

#include <map>

#include "floe/core/error.h"
#include "floe/launch/environment.h"

namespace floe::comm {
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

TEST(Rendezvous, NothingSetIsASingleProcess) {
  for (const std::string url : {"", "env"}) {
    const Rendezvous r = find({{"HOME", "/"}}, {.url = url});
    EXPECT_EQ(r.rank, 0);
    EXPECT_EQ(r.world_size, 1);
    EXPECT_EQ(r.local_rank, 0);
    EXPECT_EQ(r.host, "");
    EXPECT_FALSE(r.store_is_external);
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
  EXPECT_FALSE(r.store_is_external);

  Settings with_store = torchrun;
  with_store["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_TRUE(find(with_store).store_is_external);
  EXPECT_EQ(find(with_store).attempt, 0);
  with_store["TORCHELASTIC_RESTART_COUNT"] = "3";
  EXPECT_EQ(find(with_store).attempt, 3);
  with_store["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_FALSE(find(with_store).store_is_external);
}

// What `floe launch` really sets.
TEST(Rendezvous, FloeLaunch) {
  Settings variables;
  for (const auto& [name, value] : launch::rank_environment(2, 3, 23456, /*prefixed=*/true))
    variables[name] = value;
  const Rendezvous r = find(variables);
  EXPECT_EQ(r.rank, 2);
  EXPECT_EQ(r.world_size, 3);
  EXPECT_EQ(r.local_rank, 2);
  EXPECT_EQ(r.host, "127.0.0.1");
  EXPECT_EQ(r.port, 23456);
  EXPECT_FALSE(r.store_is_external);
}

TEST(Rendezvous, RanksByHandInTheEnvironment) {
  const Rendezvous r = find({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "::1"}});
  EXPECT_EQ(r.local_rank, 0);
  EXPECT_EQ(r.host, "::1");
  EXPECT_EQ(r.port, 29500);
  EXPECT_EQ(r.source, "RANK and WORLD_SIZE");
}

TEST(Rendezvous, AWorldOfOneNeedsNoHost) {
  EXPECT_EQ(find({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).host, "");
  EXPECT_EQ(find({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}).world_size, 1);
}

// mpirun, and horovodrun on top of it.
TEST(Rendezvous, OpenMpiAndHorovod) {
  const Rendezvous r = find({{"OMPI_COMM_WORLD_RANK", "5"},
                             {"OMPI_COMM_WORLD_SIZE", "8"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                             {"HOROVOD_GLOO_TIMEOUT_SECONDS", "30"},
                             {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "1234"}});
  EXPECT_EQ(r.rank, 5);
  EXPECT_EQ(r.world_size, 8);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.host, "10.0.0.1");
  EXPECT_EQ(r.port, 1234);
  EXPECT_EQ(r.source, "OpenMPI");
}

const Settings kSlurm{{"SLURM_PROCID", "5"},
                      {"SLURM_NTASKS", "16"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_JOB_ID", "1234567"},
                      {"SLURM_JOB_NODELIST", "gpu[003-007,9],cpu1"}};

Settings with(Settings settings, const Settings& more) {
  for (const auto& [name, value] : more) settings[name] = value;
  return settings;
}

Settings without(Settings settings, const std::string& name) {
  settings.erase(name);
  return settings;
}

TEST(Rendezvous, Slurm) {
  const Rendezvous r = find(kSlurm);
  EXPECT_EQ(r.rank, 5);
  EXPECT_EQ(r.world_size, 16);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.host, "gpu003");
  EXPECT_EQ(r.port, 20000 + 1234567 % 20000);
  EXPECT_EQ(r.source, "SLURM");
}

TEST(Rendezvous, SlurmPortsOfJobsAreUsable) {
  for (const std::string job : {"0", "1", "19999", "20000", "2147483647"}) {
    const int port = find(with(kSlurm, {{"SLURM_JOB_ID", job}})).port;
    EXPECT_GE(port, 20000) << job;
    EXPECT_LT(port, 40000) << job;
  }
  EXPECT_NE(find(with(kSlurm, {{"SLURM_JOB_ID", "41"}})).port,
            find(with(kSlurm, {{"SLURM_JOB_ID", "42"}})).port);
}

TEST(Rendezvous, SlurmsGuessesGiveWay) {
  const Rendezvous r = find(with(kSlurm, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "7"}}));
  EXPECT_EQ(r.host, "head");
  EXPECT_EQ(r.port, 7);
  EXPECT_EQ(find(without(kSlurm, "SLURM_JOB_ID")).port, 29500);
  const Settings old = with(without(kSlurm, "SLURM_JOB_NODELIST"), {{"SLURM_NODELIST", "n[2,4]"}});
  EXPECT_EQ(find(old).host, "n2");
}

TEST(Rendezvous, OneTaskOfSlurmIsASingleProcess) {
  const Rendezvous r = find(with(kSlurm, {{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}}));
  EXPECT_EQ(r.world_size, 1);
  EXPECT_EQ(r.host, "");
  EXPECT_EQ(r.source, "a single process");
}

TEST(Rendezvous, TheInnermostLauncherWins) {
  const Settings mpi{
      {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}};
  EXPECT_EQ(find(with(kSlurm, mpi)).source, "OpenMPI");
  const Settings torchrun{{"RANK", "3"}, {"WORLD_SIZE", "4"}};
  const Rendezvous r = find(with(with(kSlurm, mpi), torchrun));
  EXPECT_EQ(r.rank, 3);
  EXPECT_EQ(r.world_size, 4);
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
}

ManualInit by_hand(const std::string& url, std::optional<int> rank = {},
                   std::optional<int> world_size = {}) {
  return {url, rank, world_size};
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

const Settings kRanks{{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}};
const Settings kMpi{
    {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}};

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
  expect_refused(without(kMpi, "OMPI_COMM_WORLD_SIZE"), {}, {"has no OMPI_COMM_WORLD_SIZE"});
  expect_refused(with(kMpi, {{"OMPI_COMM_WORLD_RANK", "4"}}), {}, {"OMPI_COMM_WORLD_RANK='4'"});
  expect_refused(without(kMpi, "MASTER_ADDR"), {}, {"no MASTER_ADDR"});
  expect_refused(with(kSlurm, {{"SLURM_PROCID", "16"}}), {}, {"SLURM_PROCID='16'", "from 0 to 15"});
  expect_refused(with(kSlurm, {{"SLURM_NTASKS", "many"}}), {}, {"SLURM_NTASKS='many'"});
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

}  // namespace
}  // namespace floe::comm
