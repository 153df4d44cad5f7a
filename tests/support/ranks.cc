#include "tests/support/ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "floe/core/error.h"
#include "floe/launch/environment.h"

namespace floe::test {
namespace {

constexpr const char* kRankMark = "FLOE_TEST_RANK";

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace

bool is_rank() { return std::getenv(kRankMark) != nullptr; }

RanksOutcome start_ranks(const std::string& suite, const std::string& name, int ranks,
                         std::chrono::seconds limit) {
  const char* patience = std::getenv("FLOE_TEST_PATIENCE");  // tests/support/patience.py
  limit *= patience && *patience ? std::max(1L, std::strtol(patience, nullptr, 10)) : 3;
#ifdef __SANITIZE_ADDRESS__
  limit *= 4;
#endif
  const std::string port = std::to_string(launch::free_port());
  char folder[] = "/tmp/floe-ranks-XXXXXX";
  if (!mkdtemp(folder)) throw std::runtime_error("mkdtemp failed");
  const auto begin = std::chrono::steady_clock::now();
  std::vector<pid_t> pids;
  std::vector<std::string> logs;
  for (int rank = 0; rank < ranks; ++rank) {
    logs.push_back(std::string(folder) + "/" + std::to_string(rank));
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int log = open(logs.back().c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
      dup2(log, STDOUT_FILENO);
      dup2(log, STDERR_FILENO);
      setenv(kRankMark, "1", 1);
      setenv("RANK", std::to_string(rank).c_str(), 1);
      setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
      setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
      setenv("MASTER_ADDR", "127.0.0.1", 1);
      setenv("MASTER_PORT", port.c_str(), 1);
      setenv("OMP_NUM_THREADS", "1", 1);
      const std::string filter = "--gtest_filter=" + suite + "." + name;
      execl("/proc/self/exe", "rank", filter.c_str(), "--gtest_brief=1", nullptr);
      _exit(127);
    }
    pids.push_back(pid);
  }
  RanksOutcome outcome;
  outcome.exit_codes.assign(static_cast<std::size_t>(ranks), -1);
  int left = ranks;
  while (left > 0) {
    for (std::size_t i = 0; i < pids.size(); ++i) {
      int status = 0;
      if (outcome.exit_codes[i] < 0 && waitpid(pids[i], &status, WNOHANG) == pids[i]) {
        outcome.exit_codes[i] = code_of(status);
        left -= 1;
      }
    }
    if (left > 0 && std::chrono::steady_clock::now() - begin > limit) {
      for (std::size_t i = 0; i < pids.size(); ++i)
        if (outcome.exit_codes[i] < 0) {
          kill(pids[i], SIGKILL);
          waitpid(pids[i], nullptr, 0);
          outcome.exit_codes[i] = 124;
          left -= 1;
        }
    }
    if (left > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (const auto& log : logs) {
    outcome.outputs.push_back(read_file(log));
    unlink(log.c_str());
  }
  rmdir(folder);
  return outcome;
}

c10::Device device() {
  const char* name = std::getenv("FLOE_TEST_DEVICE");
  if (name == nullptr) return c10::kCPU;
  require(std::string(name) == "cuda", "FLOE_TEST_DEVICE is '", name, "', not cuda");
  return c10::Device(c10::kCUDA, 0);
}

bool nccl_is_asked_for() {
  const char* name = std::getenv("FLOE_TEST_BACKEND");
  if (name == nullptr) return false;
  require(std::string(name) == "nccl", "FLOE_TEST_BACKEND is '", name, "', not nccl");
  return true;
}

namespace {

// NCCL refuses two ranks on one GPU of one machine: each rank says that it is on a machine of its
// own, and they talk through sockets.
void share_a_gpu_over_nccl() {
  const std::map<std::string, std::string> settings{
      {"NCCL_HOSTID", str("floe-", std::getenv("RANK"))},
      {"NCCL_SOCKET_IFNAME", "lo"},
      {"NCCL_IB_DISABLE", "1"},
      {"NCCL_NET_PLUGIN", "none"}};
  for (const auto& [name, value] : settings) setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace

std::shared_ptr<comm::World> join_world(const JoinOptions& how) {
  if (how.over_nccl) share_a_gpu_over_nccl();
  comm::WorldOptions options;
  options.device = device();
  options.backend = how.over_nccl ? comm::Backend::nccl : comm::Backend::gloo;
  options.timeout = how.timeout;
  options.rendezvous = comm::find_rendezvous({}, comm::process_environment());
  return comm::World::join(options);
}

void run_on_ranks(const std::string& suite, const std::string& name, int ranks,
                  const std::function<void()>& body, std::chrono::seconds limit) {
  if (is_rank()) {
    body();
    return;
  }
  const RanksOutcome outcome = start_ranks(suite, name, ranks, limit);
  for (std::size_t i = 0; i < outcome.exit_codes.size(); ++i)
    EXPECT_EQ(outcome.exit_codes[i], 0) << "rank " << i << " said:\n" << outcome.outputs[i];
}

}  // namespace floe::test
