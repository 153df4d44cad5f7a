// floe doctor on the ranks of a job: what no machine can see alone.
#include <ATen/ops/ones.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <thread>

#include "floe/cli/commands/doctor.h"
#include "floe/comm/shared_folder.h"
#include "floe/comm/world.h"
#include "floe/control/socket.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/host.h"
#include "floe/core/stopwatch.h"
#include "floe/io/file/file.h"
#include "floe/observe/metrics/record.h"

namespace floe::cli {
namespace {

using State = Finding::State;
using control::Clock;

constexpr std::int64_t kSent = 32 * kMiB;     // between two hosts
constexpr std::int64_t kReduced = 32 * kMiB;  // by all ranks
constexpr int kPings = 20;
constexpr std::chrono::seconds kPatience{20};  // for another host's answer
constexpr double kClocksApartSeconds = 2;
constexpr double kSlow = 0.25;  // of the median

// ---- what the ranks tell each other

// Collective: the texts of all ranks, by rank.
std::vector<std::string> exchange(comm::World& world, const std::string& what,
                                  const std::string& text) {
  world.publish(str("doctor/", what, "/", world.rank()), text);
  std::vector<std::string> all;
  for (int rank = 0; rank < world.size(); ++rank)
    all.push_back(world.hear(str("doctor/", what, "/", rank),
                             str(world.name_of(rank), " has not told its ", what)));
  return all;
}

// "ranks 0, 3" of those that have something.
std::string names_of(const comm::World& world, const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (const int rank : ranks) names.push_back(world.name_of(rank));
  return join(names, ", ");
}

// ---- single findings

Finding placement(const comm::World& world) {
  return {State::ok, "ranks", join(world.placement(), "; "), ""};
}

// Of every machine what is not well; the ranks that say the same together.
std::vector<Finding> machines(comm::World& world) {
  nlohmann::json mine = nlohmann::json::array();
  for (const Finding& finding : look_at_machine())
    if (finding.state == State::problem)
      mine.push_back({finding.what, finding.found, finding.advice});
  std::map<std::array<std::string, 3>, std::vector<int>> ranks_by_problem;
  const auto all = exchange(world, "machine", mine.dump());
  for (int rank = 0; rank < world.size(); ++rank)
    for (const auto& problem : nlohmann::json::parse(all[static_cast<std::size_t>(rank)]))
      ranks_by_problem[problem.get<std::array<std::string, 3>>()].push_back(rank);
  std::vector<Finding> findings;
  for (const auto& [problem, ranks] : ranks_by_problem)
    findings.push_back({State::problem, problem[0],
                        str(problem[1], " (", names_of(world, ranks), ")"), problem[2]});
  if (findings.empty())
    findings.push_back(
        {State::ok, "machines", "limits, devices and libraries are well on all ranks", ""});
  return findings;
}

Finding program(comm::World& world) {
  const File own("/proc/self/exe");
  const std::string digest = str(own.size(), " bytes, checksum ", crc32(own, 0, own.size()));
  const auto all = exchange(world, "program", digest);
  for (int rank = 1; rank < world.size(); ++rank)
    if (all[static_cast<std::size_t>(rank)] != all[0])
      return {State::problem, "program",
              str(world.name_of(0), " runs another floe (", all[0], ") than ", world.name_of(rank),
                  " (", all[static_cast<std::size_t>(rank)], ")"),
              "Install the same program on all hosts."};
  return {State::ok, "program", str("the same on all ranks (", all[0], ")"), ""};
}

// Logs of several hosts can be read together only if their clocks agree.
Finding clocks(comm::World& world) {
  world.group()->barrier("doctor: clocks");
  const auto all = exchange(world, "clock", str(observe::unix_time_s()));
  double widest = 0;
  int which = 0;
  for (int rank = 1; rank < world.size(); ++rank) {
    const double apart = std::stod(all[static_cast<std::size_t>(rank)]) - std::stod(all[0]);
    if (std::abs(apart) > std::abs(widest)) {
      widest = apart;
      which = rank;
    }
  }
  if (std::abs(widest) <= kClocksApartSeconds) return {State::ok, "clocks", "agree", ""};
  return {State::problem, "clocks",
          str("that of ", world.name_of(which), " is ", std::abs(widest), " s ",
              widest > 0 ? "ahead of" : "behind", " that of ", world.name_of(0)),
          "Let all hosts ask the same time server (NTP)."};
}

Finding shared_folder(comm::World& world, const std::string& folder) {
  const auto found = comm::find_folder_problem(world, folder, kPatience);
  std::string problem;
  if (found && found->error != 0)
    problem = std::strerror(found->error);
  else if (found)
    problem = str("does not see what ", world.name_of(found->unseen), " has written");
  const auto all = exchange(world, "folder", problem);
  std::vector<std::string> problems;
  for (int rank = 0; rank < world.size(); ++rank)
    if (const auto& text = all[static_cast<std::size_t>(rank)]; !text.empty())
      problems.push_back(str(world.name_of(rank), ": ", text));
  if (problems.empty())
    return {State::ok, "folder", str(folder, ": all ranks write there, and see each other's files"),
            ""};
  return {State::problem, "folder", str(folder, ": ", join(problems, "; ")),
          "Runs need a folder that all hosts share and all ranks may write to."};
}

// ---- connections between hosts

// Everything, or false after kPatience.
bool send_all(const UniqueFd& socket, std::span<const char> bytes) {
  const auto end = Clock::now() + kPatience;
  while (!bytes.empty() && Clock::now() < end) {
    const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0)
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    else if (errno == EAGAIN)
      std::this_thread::yield();
    else if (errno != EINTR)
      return false;
  }
  return bytes.empty();
}

bool receive_all(const UniqueFd& socket, std::span<char> bytes) {
  const auto end = Clock::now() + kPatience;
  while (!bytes.empty() && Clock::now() < end) {
    const ssize_t got = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
    if (got > 0)
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    else if (got == 0 || (errno != EAGAIN && errno != EINTR))
      return false;
    else if (errno == EAGAIN)
      std::this_thread::yield();
  }
  return bytes.empty();
}

struct Measured {
  double bytes_per_s = 0, round_trip_s = 0;
};

// The side that asks. The other one sends everything back while it is small, then a single byte.
std::optional<Measured> measure(const control::Address& other, std::string& why) {
  const UniqueFd socket = control::connect_to(other, Clock::now() + kPatience, why);
  if (!socket) return std::nullopt;
  why = "the connection broke off, or stood still";
  std::array<char, 1> byte{};
  const Stopwatch pings;
  for (int i = 0; i < kPings; ++i)
    if (!send_all(socket, byte) || !receive_all(socket, byte)) return std::nullopt;
  Measured measured;
  measured.round_trip_s = pings.seconds() / kPings;
  const std::vector<char> bytes(static_cast<std::size_t>(kSent));
  const Stopwatch transfer;
  if (!send_all(socket, bytes) || !receive_all(socket, byte)) return std::nullopt;
  measured.bytes_per_s = static_cast<double>(kSent) / transfer.seconds();
  return measured;
}

void answer(const UniqueFd& listening) {
  const auto end = Clock::now() + kPatience;
  UniqueFd socket;
  while (!(socket = control::accept_from(listening)) && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!socket) return;
  std::array<char, 1> byte{};
  for (int i = 0; i < kPings; ++i)
    if (!receive_all(socket, byte) || !send_all(socket, byte)) return;
  std::vector<char> bytes(static_cast<std::size_t>(kSent));
  if (receive_all(socket, bytes)) send_all(socket, byte);
}

// Who meets whom in a round, so that every pair meets once and nobody meets two at a time: number i
// of n meets the one returned; itself: nobody.
std::size_t partner(std::size_t i, std::size_t round, std::size_t n) {
  const std::size_t even = n + n % 2, last = even - 1;
  std::size_t other = 0;
  if (i == last)
    other = round;
  else if (i == round)
    other = last;
  else
    other = (2 * round + last - i) % last;
  return other < n ? other : i;
}

std::string pair_text(const std::string& a, const std::string& b, const Measured& measured) {
  return str(a, " and ", b, ": ", format_bytes(static_cast<std::int64_t>(measured.bytes_per_s)),
             "/s, ", std::round(measured.round_trip_s * 1e7) / 10, " us");
}

// Every two hosts, over the addresses by which ranks reach each other.
std::vector<Finding> connections(comm::World& world, const std::string& address) {
  // One rank of each host takes part.
  const bool takes_part = world.is_first_on_host();
  UniqueFd listening;
  nlohmann::json self = nullptr;
  if (takes_part) {
    listening = control::listen_at(0, /*loopback_only=*/false, Clock::now());
    self = {{"host", host_name()}, {"address", address}, {"port", control::port_of(listening)}};
  }
  std::vector<nlohmann::json> hosts;
  std::size_t own = 0;
  const auto all = exchange(world, "address", self.dump());
  for (int rank = 0; rank < world.size(); ++rank) {
    auto host = nlohmann::json::parse(all[static_cast<std::size_t>(rank)]);
    if (host.is_null()) continue;
    if (rank == world.rank()) own = hosts.size();
    hosts.push_back(std::move(host));
  }

  nlohmann::json mine = nlohmann::json::array();
  const std::size_t rounds = hosts.size() + hosts.size() % 2 - 1;
  for (std::size_t round = 0; round < rounds; ++round) {
    world.group()->barrier("doctor: pairs of hosts");
    if (!takes_part) continue;
    const std::size_t other = partner(own, round, hosts.size());
    if (other == own) continue;
    if (own < other) {
      answer(listening);
      continue;
    }
    const auto& there = hosts[other];
    std::string why;
    const auto measured =
        measure({there.at("address").get<std::string>(), there.at("port").get<int>()}, why);
    if (measured)
      mine.push_back({other, own, measured->bytes_per_s, measured->round_trip_s, ""});
    else
      mine.push_back({other, own, 0.0, 0.0, why});
  }

  std::vector<Finding> findings;
  std::vector<std::pair<Measured, std::string>> good;
  for (const std::string& text : exchange(world, "connections", mine.dump()))
    for (const auto& pair : nlohmann::json::parse(text)) {
      const auto name = [&](int which) {
        const auto& host = hosts[pair[static_cast<std::size_t>(which)].get<std::size_t>()];
        return str(host.at("host").get<std::string>(), " (", host.at("address").get<std::string>(),
                   ")");
      };
      const Measured measured{pair[2].get<double>(), pair[3].get<double>()};
      if (const auto why = pair[4].get<std::string>(); !why.empty())
        findings.push_back({State::problem, "connection",
                            str(name(1), " does not reach ", name(0), ": ", why),
                            "Open the network between these hosts, or name the right device with "
                            "dist.interface."});
      else
        good.emplace_back(measured, pair_text(name(0), name(1), measured));
    }
  if (good.empty()) return findings;
  std::sort(good.begin(), good.end(),
            [](const auto& a, const auto& b) { return a.first.bytes_per_s < b.first.bytes_per_s; });
  const double median = good[good.size() / 2].first.bytes_per_s;
  for (const auto& [measured, text] : good)
    if (measured.bytes_per_s < kSlow * median)
      findings.push_back({State::problem, "connection",
                          str(text, ", where the median is ",
                              format_bytes(static_cast<std::int64_t>(median)), "/s"),
                          "Every step waits for the slowest connection: look at this link."});
  findings.push_back({State::ok, "connections",
                      str(counted(static_cast<std::int64_t>(good.size()), "pair"),
                          " of hosts over TCP; the slowest: ", good.front().second),
                      ""});
  return findings;
}

// The backend and devices with which a run would train.
Finding collective(comm::World& world) {
  const at::Tensor numbers =
      at::ones({kReduced / 4}, at::TensorOptions().dtype(at::kFloat).device(world.device()));
  const auto reduce = [&] {
    world.group()->all_reduce(numbers, comm::Reduce::average, "doctor: all ranks").wait();
    return world.read(numbers.narrow(0, numbers.numel() - 1, 1)).item<float>();
  };
  reduce();  // makes the connections
  const Stopwatch watch;
  const float last = reduce();
  const double seconds = watch.seconds();
  if (last != 1.0F)
    return {State::problem, "all-reduce", str("gives ", last, " as the mean of ones"),
            "Something computes or transfers wrongly: test these hosts one by one."};
  return {State::ok, "all-reduce",
          str(format_bytes(kReduced), " over all ranks in ", std::round(seconds * 1e4) / 10,
              " ms, with the right numbers"),
          ""};
}

}  // namespace

std::vector<Finding> look_at_ranks(const comm::Rendezvous& place, const std::string& folder) {
  const auto world = comm::World::join({.timeout = std::chrono::seconds(120), .rendezvous = place});
  std::vector<Finding> findings{placement(*world)};
  const auto add = [&](const std::vector<Finding>& more) {
    findings.insert(findings.end(), more.begin(), more.end());
  };
  add(machines(*world));
  findings.push_back(program(*world));
  if (world->on_several_hosts()) {
    findings.push_back(clocks(*world));
    const std::string address = control::route_to(place.host);
    add(connections(*world, address));
  }
  if (!folder.empty()) findings.push_back(shared_folder(*world, folder));
  findings.push_back(collective(*world));
  world->group()->barrier("doctor: done");
  return findings;
}

}  // namespace floe::cli
