#include "tests/support/ranks.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "floe/core/error.h"
#include "floe/launch/environment.h"
#include "tests/support/before_tests.h"

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

namespace {

struct Request {
  std::string test;  // SUITE.NAME
  int ranks = 0;
  std::chrono::seconds limit{0};
  std::vector<std::string> environment;
};

// In the process of a rank, before its test begins.
void become_rank(const Request& request, int rank, const std::string& port,
                 const std::string& log) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int file = open(log.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  close(file);
  clearenv();
  for (const auto& entry : request.environment) {
    const auto name = entry.substr(0, entry.find('='));
    setenv(name.c_str(), entry.substr(name.size() + 1).c_str(), 1);
  }
  setenv(kRankMark, "1", 1);
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(request.ranks).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", port.c_str(), 1);
  setenv("OMP_NUM_THREADS", "1", 1);
}

// Forks the ranks and waits for their ends. `begin` is what each does after become_rank(); where it
// returns, so does this function, in the process of the rank, with nothing.
std::optional<RanksOutcome> fork_ranks(const Request& request, const std::function<void()>& begin) {
  const std::string port = std::to_string(launch::free_port());
  char folder[] = "/tmp/floe-ranks-XXXXXX";
  if (!mkdtemp(folder)) throw std::runtime_error("mkdtemp failed");
  const auto started = std::chrono::steady_clock::now();
  std::vector<pid_t> pids;
  std::vector<std::string> logs;
  for (int rank = 0; rank < request.ranks; ++rank) {
    logs.push_back(std::string(folder) + "/" + std::to_string(rank));
    const pid_t pid = fork();
    if (pid == 0) {
      become_rank(request, rank, port, logs.back());
      begin();
      return std::nullopt;
    }
    pids.push_back(pid);
  }
  RanksOutcome outcome;
  outcome.exit_codes.assign(pids.size(), -1);
  int left = request.ranks;
  while (left > 0) {
    for (std::size_t i = 0; i < pids.size(); ++i) {
      int status = 0;
      if (outcome.exit_codes[i] < 0 && waitpid(pids[i], &status, WNOHANG) == pids[i]) {
        outcome.exit_codes[i] = code_of(status);
        left -= 1;
      }
    }
    if (left > 0 && std::chrono::steady_clock::now() - started > request.limit) {
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
  outcome.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  for (const auto& log : logs) {
    outcome.outputs.push_back(read_file(log));
    unlink(log.c_str());
  }
  rmdir(folder);
  return outcome;
}

// Note [Spare process]: loading LibTorch takes longer than most of what a rank does, and there are
// hundreds. So before its first test the program forks a spare process, which has loaded it and
// done nothing else. Ranks are forked from that one, each as fresh as a program that was started.
int spare = -1;  // a socket to it

void send(int socket, const void* data, std::size_t size) {
  for (const char* at = static_cast<const char*>(data); size > 0;) {
    const ssize_t sent = ::send(socket, at, size, MSG_NOSIGNAL);
    if (sent <= 0) throw std::runtime_error("the process that starts ranks is gone");
    at += sent, size -= static_cast<std::size_t>(sent);
  }
}

// False where the other side has ended.
bool receive(int socket, void* data, std::size_t size) {
  for (char* at = static_cast<char*>(data); size > 0;) {
    const ssize_t got = recv(socket, at, size, 0);
    if (got <= 0) return false;
    at += got, size -= static_cast<std::size_t>(got);
  }
  return true;
}

void send_json(int socket, const nlohmann::json& json) {
  const auto bytes = nlohmann::json::to_cbor(json);
  const std::size_t size = bytes.size();
  send(socket, &size, sizeof size);
  send(socket, bytes.data(), size);
}

std::optional<nlohmann::json> receive_json(int socket) {
  std::size_t size = 0;
  if (!receive(socket, &size, sizeof size)) return std::nullopt;
  std::vector<std::uint8_t> bytes(size);
  if (!receive(socket, bytes.data(), size)) return std::nullopt;
  return nlohmann::json::from_cbor(bytes);
}

using Bytes = nlohmann::json::binary_t;
Bytes bytes_of(const std::string& text) { return Bytes({text.begin(), text.end()}); }
std::string text_of(const nlohmann::json& json) {
  return {json.get_binary().begin(), json.get_binary().end()};
}

// What the spare process does until the test program ends. Returns in the process of a rank.
void serve(int socket) {
  while (const auto json = receive_json(socket)) {
    Request request{.test = json->at("test"),
                    .ranks = json->at("ranks"),
                    .limit = std::chrono::seconds(json->at("limit").get<std::int64_t>()),
                    .environment = {}};
    for (const auto& entry : json->at("environment")) request.environment.push_back(text_of(entry));
    const auto outcome = fork_ranks(request, [&] {
      close(socket);
      at::set_num_threads(1);
      GTEST_FLAG_SET(filter, request.test);
      GTEST_FLAG_SET(brief, true);
    });
    if (!outcome) return;
    nlohmann::json answer{{"codes", outcome->exit_codes}, {"seconds", outcome->seconds}};
    for (const auto& output : outcome->outputs) answer["outputs"].push_back(bytes_of(output));
    send_json(socket, answer);
  }
  _exit(0);
}

// A rank on a GPU is a program of its own.
bool set_aside = [] {
  before_tests() = [] {
    if (std::getenv("FLOE_TEST_DEVICE") != nullptr || is_rank()) return;
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(ends[0]);
      serve(ends[1]);
      return;
    }
    close(ends[1]);
    spare = ends[0];
  };
  return true;
}();

RanksOutcome ask_spare(const Request& request) {
  nlohmann::json json{{"test", request.test}, {"ranks", request.ranks}};
  json["limit"] = request.limit.count();
  for (const auto& entry : request.environment) json["environment"].push_back(bytes_of(entry));
  send_json(spare, json);
  const auto answer = receive_json(spare);
  if (!answer) throw std::runtime_error("the process that starts ranks is gone");
  RanksOutcome outcome{
      .exit_codes = answer->at("codes"), .outputs = {}, .seconds = answer->at("seconds")};
  for (const auto& output : answer->at("outputs")) outcome.outputs.push_back(text_of(output));
  return outcome;
}

}  // namespace

RanksOutcome start_ranks(const std::string& suite, const std::string& name, int ranks,
                         std::chrono::seconds limit) {
  const char* patience = std::getenv("FLOE_TEST_PATIENCE");  // tests/support/patience.py
  limit *= patience && *patience ? std::max(1L, std::strtol(patience, nullptr, 10)) : 3;
#ifdef __SANITIZE_ADDRESS__
  limit *= 4;
#endif
  Request request{.test = suite + "." + name, .ranks = ranks, .limit = limit, .environment = {}};
  for (char** entry = environ; *entry != nullptr; ++entry) request.environment.push_back(*entry);
  if (spare >= 0) return ask_spare(request);
  return *fork_ranks(request, [&] {
    const std::string filter = "--gtest_filter=" + request.test;
    execl("/proc/self/exe", "rank", filter.c_str(), "--gtest_brief=1", nullptr);
    _exit(127);
  });
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
