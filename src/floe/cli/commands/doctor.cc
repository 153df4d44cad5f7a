#include "floe/cli/commands/doctor.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "floe/cli/command.h"
#include "floe/cli/options.h"
#include "floe/comm/backends.h"
#include "floe/comm/world.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/launch/launch.h"
#include "floe/version.h"

namespace floe::cli {
namespace {

using State = Finding::State;

constexpr rlim_t kEnoughFiles = 4096;
constexpr std::int64_t kEnoughShared = 64 * kMiB;

Finding versions() {
  utsname system{};
  uname(&system);
  return {State::ok, "versions",
          str("floe ", kVersion, ", LibTorch ", TORCH_VERSION, ", ", system.sysname, " ",
              system.release, " ", system.machine),
          ""};
}

Finding libraries() {
  Dl_info info{};
  const auto* symbol = reinterpret_cast<const void*>(&at::get_num_threads);
  const bool known = dladdr(symbol, &info) != 0 && info.dli_fname;
  return {State::ok, "LibTorch", known ? info.dli_fname : "linked into the program", ""};
}

Finding processors() {
  return {State::ok, "processors",
          str(std::thread::hardware_concurrency(), " cores, torch uses ", at::get_num_threads(),
              " threads"),
          ""};
}

Finding devices() {
  const bool built_for_cuda = comm::has_nccl();
  const auto count = at::hasCUDA() ? at::accelerator::deviceCount() : 0;
  if (count > 0) return {State::ok, "devices", str(count, count == 1 ? " GPU" : " GPUs"), ""};
  const bool driver = std::filesystem::exists("/proc/driver/nvidia/version");
  if (driver && !built_for_cuda)
    return {State::problem, "devices", "there is an NVIDIA driver, but this build is without CUDA",
            "Build with FLOE_CUDA=1 ./run build."};
  if (driver)
    return {State::problem, "devices", "there is an NVIDIA driver, but no GPU can be used",
            "Look at nvidia-smi and at CUDA_VISIBLE_DEVICES."};
  return {State::note, "devices", "no GPU; ranks compute on the CPU", ""};
}

Finding backends() {
  return {State::ok, "backends",
          comm::has_nccl() ? "gloo, nccl" : "gloo (this build has no nccl: it is without CUDA)",
          ""};
}

Finding network() {
  ifaddrs* list = nullptr;
  std::set<std::string> up;
  bool loopback = false;
  if (getifaddrs(&list) == 0) {
    for (const ifaddrs* at = list; at; at = at->ifa_next) {
      if (!at->ifa_addr || !(at->ifa_flags & IFF_UP)) continue;
      const int family = at->ifa_addr->sa_family;
      if (family != AF_INET && family != AF_INET6) continue;
      up.insert(at->ifa_name);
      loopback = loopback || (at->ifa_flags & IFF_LOOPBACK);
    }
    freeifaddrs(list);
  }
  if (!loopback)
    return {State::problem, "network", "there is no loopback interface",
            "Ranks on one machine meet over it: ip link set lo up."};
  const bool alone = up.size() == 1;
  std::string found =
      "interfaces that are up: " + join(std::vector<std::string>(up.begin(), up.end()));
  for (const char* name : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"})
    if (const char* chosen = std::getenv(name)) {
      found += str("; ", name, "=", chosen);
      if (!up.contains(chosen))
        return {State::problem, "network", found,
                str(name, " names an interface that is not up: change or unset it.")};
    }
  return {alone ? State::note : State::ok, "network", found,
          alone ? "Only ranks of this machine can meet." : ""};
}

Finding open_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= kEnoughFiles || limit.rlim_cur == RLIM_INFINITY)
    return {State::ok, "open files", str("at most ", limit.rlim_cur), ""};
  return {State::problem, "open files", str("at most ", limit.rlim_cur, " in a process"),
          str("Many ranks and shards need more: ulimit -n ", kEnoughFiles,
              limit.rlim_max >= kEnoughFiles ? "." : ", after the administrator has raised it.")};
}

Finding locked_memory() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool unlimited = limit.rlim_cur == RLIM_INFINITY;
  const std::string found =
      unlimited ? "unlimited" : format_bytes(static_cast<std::int64_t>(limit.rlim_cur));
  if (unlimited || !at::hasCUDA()) return {State::ok, "locked memory", found, ""};
  return {State::note, "locked memory", found,
          "InfiniBand needs it unlimited: ulimit -l unlimited."};
}

Finding shared_memory() {
  struct statvfs stat {};
  if (statvfs("/dev/shm", &stat) != 0)
    return {State::note, "shared memory", "there is no /dev/shm",
            "NCCL on one machine uses it; in a container, mount it."};
  const auto bytes =
      static_cast<std::int64_t>(stat.f_bavail) * static_cast<std::int64_t>(stat.f_frsize);
  if (bytes >= kEnoughShared)
    return {State::ok, "shared memory", format_bytes(bytes) + " free", ""};
  return {State::problem, "shared memory",
          str("only ", format_bytes(bytes), " are free in /dev/shm"),
          "NCCL fails without it; in Docker, start with --shm-size=1g."};
}

Finding memory_of_ranks() {
  try {
    const auto closed = comm::closed_memory();
    if (!closed)
      return {
          State::ok, "memory of ranks",
          comm::memory_needs_launcher()
              ? "on the CPU, those of this host read each other's, where floe launch, torchrun, "
                "srun or mpirun has started them (kernel.yama.ptrace_scope is 1)"
              : "on the CPU, those of this host read each other's",
          ""};
    return {State::note, "memory of ranks",
            str(closed->cause, ": on the CPU, those of this host use sockets"), closed->advice};
  } catch (const ConfigError& e) {
    return {State::problem, "memory of ranks", e.what(), "Change or unset it."};
  }
}

// Where a launcher has put this process.
struct LauncherPlace {
  std::optional<comm::Rendezvous> found;
  std::string problem;  // why it is not known
};
LauncherPlace find_place() {
  try {
    return {comm::find_rendezvous({.url = "env"}, comm::process_environment()), ""};
  } catch (const ConfigError& e) {
    return {std::nullopt, e.what()};
  }
}

Finding launcher(const LauncherPlace& place) {
  if (!place.found)
    return {State::problem, "launcher", place.problem,
            "Start ranks with floe launch, torchrun or srun."};
  const comm::Rendezvous& found = *place.found;
  if (found.world_size == 1 && found.host.empty())
    return {State::ok, "launcher",
            found.source == "a single process"
                ? std::string("none; a single process (start ranks with floe launch)")
                : found.source,
            ""};
  return {State::ok, "launcher",
          str(found.source, ": rank ", found.rank, " of ", found.world_size, ", rank 0 at ",
              found.host, ":", found.port),
          ""};
}

Finding configs() {
  const std::string folder = own_configs();
  if (!folder.empty()) return {State::ok, "configurations", folder, ""};
  return {State::problem, "configurations", "floe's own strategy/ and experiment/ are not found",
          "Keep the folder configs/ of the checkout, or install it as share/floe/configs."};
}

std::string_view name_of(State state) {
  switch (state) {
    case State::ok: return "ok";
    case State::note: return "note";
    case State::problem: return "problem";
  }
  return "";
}

// Two ranks of this program on this machine, through the same rendezvous, store and collectives as
// training.
Finding try_two_ranks() {
  launch::LaunchOptions options;
  options.command = {"/proc/self/exe", "doctor", "--as-rank"};
  options.num_ranks = 2;
  options.prefix = false;
  // Ranks of a launcher that started this process would confuse those that it starts.
  options.environment = {{"FLOE_LOG", "error"}};
  const launch::LaunchResult result = launch::launch(options);
  if (result.exit_code() == 0)
    return {State::ok, "two ranks", "met over loopback, gathered and reduced the right numbers",
            ""};
  return {State::problem, "two ranks", launch::describe_failure(result),
          "Look at the network line above; a firewall must let loopback through."};
}

// What each of them does. Collective. Throws when a result is wrong.
void communicate_as_rank() {
  // The CPU and Gloo also where there are GPUs: two ranks need two of them for NCCL.
  const auto world =
      comm::World::join({.backend = comm::Backend::gloo,
                         .device = at::kCPU,
                         .rendezvous = comm::find_rendezvous({}, comm::process_environment())});
  // As much as goes from memory to memory where that is permitted.
  constexpr std::int64_t kNumel = 256 * 1024;
  const at::Tensor mine = at::full({kNumel}, world->rank() + 1.0F);
  const at::Tensor all = at::full({kNumel * world->size()}, 0.0F);
  world->group()->all_gather(all, mine, "doctor").wait();
  const float last = all[-1].item<float>();
  world->group()->all_reduce(mine, comm::Reduce::sum, "doctor").wait();
  const float sum = mine[0].item<float>();
  const float expected = static_cast<float>(world->size() * (world->size() + 1)) / 2;
  require<CommError>(last == static_cast<float>(world->size()) && sum == expected,
                     "collectives gave wrong numbers: gathered ", last, ", summed ", sum);
}

// Prints what was found.
Exit show(const std::vector<Finding>& findings, const Options& options) {
  bool problem = false;
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    problem = problem || finding.state == Finding::State::problem;
    if (options.has("--json")) {
      json.push_back({{"state", name_of(finding.state)},
                      {"what", finding.what},
                      {"found", finding.found},
                      {"advice", finding.advice}});
      continue;
    }
    std::cout << name_of(finding.state) << std::string(9 - name_of(finding.state).size(), ' ')
              << finding.what << ": " << finding.found << "\n";
    if (!finding.advice.empty()) std::cout << "         " << finding.advice << "\n";
  }
  if (options.has("--json"))
    std::cout << json.dump(2) << "\n";
  else
    std::cout << (problem ? "There are problems; see what each line says.\n" : "All is well.\n");
  return problem ? Exit::failed : Exit::done;
}

Exit run_doctor(const Args& args) {
  const Options options(kDoctorCommand, args);
  require<ConfigError>(options.words().empty(), "doctor takes no arguments, got '",
                       join(options.words(), " "), "'");
  if (options.has("--as-rank")) {
    communicate_as_rank();
    return Exit::done;
  }
  const std::string folder = options.value("--folder").value_or("");
  const LauncherPlace place = find_place();
  if (place.found && place.found->world_size > 1) {
    const std::vector<Finding> findings = look_at_ranks(*place.found, folder);
    if (place.found->rank == 0) return show(findings, options);
    const bool problem = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
      return finding.state == State::problem;
    });
    return problem ? Exit::failed : Exit::done;
  }
  require<ConfigError>(folder.empty(), "doctor --folder is for the ranks of a job: ",
                       "floe launch -n 2 -- doctor --folder DIR");
  std::vector<Finding> findings = look_at_machine();
  findings.push_back(launcher(place));
  if (!options.has("--no-ranks")) findings.push_back(try_two_ranks());
  return show(findings, options);
}

}  // namespace

// Versions, devices, backends, libraries, network and limits.
std::vector<Finding> look_at_machine() {
  return {versions(),   libraries(),     processors(),    devices(),         backends(), network(),
          open_files(), locked_memory(), shared_memory(), memory_of_ranks(), configs()};
}

const Command kDoctorCommand{
    .name = "doctor",
    .summary = "what is wrong with this machine, and what to do",
    .about = R"(usage: floe doctor [--json]
       srun floe doctor [--folder DIR]      (or floe launch, torchrun, mpirun)

Looks at this machine the way a training run would: versions, devices, backends, libraries, network
interfaces, limits, the environment of launchers, and two ranks that really communicate. Every line is
'ok', 'note' or 'problem'; a problem says what to do. Exit code 1 when there is one.

Started on several ranks, as a run would be, it looks at the job: whether all ranks meet and where they
are, problems of any of their machines, whether they run the same program, clocks, every two hosts over
TCP (reached, bytes per second, round trip), a folder that all must write to and share, and an all-reduce
with the backend and devices of a run. Rank 0 prints it.
)",
    .options =
        {
            {"--json", "", "the findings as JSON"},
            {"--no-ranks", "", "without starting the two ranks"},
            {"--folder", "DIR",
             "on the ranks of a job: whether all of them share it, and may write there"},
            {"--as-rank", "", ""},  // one of them
        },
    .run = run_doctor,
};

}  // namespace floe::cli
