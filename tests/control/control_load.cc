// The load of the control plane: rank 0 in this process, all other ranks in a second one, with a
// connection and a thread each.
//
//   control_load RANKS SECONDS
//
// Prints for every part how many messages rank 0 was sent, how long it took and what rank 0's
// process worked for it.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "floe/control/control_plane.h"
#include "floe/core/error.h"
#include "floe/core/log.h"

namespace {

using namespace floe::control;
using floe::UniqueFd;
using namespace std::chrono_literals;
using Op = Request::Op;

constexpr milliseconds kLong = 120s;
constexpr int kSaves = 20, kAdds = 100;

Member member(int rank, int world_size) {
  Member self;
  self.rank = rank;
  self.world_size = world_size;
  self.job = "load";
  self.host = floe::str("h", rank / 8);
  self.host_id = self.host;
  self.pid = ::getpid();
  return self;
}

// As the ranks of a save do it: each leaves a value, rank 0 takes all of them and tells the result.
void exchange(ControlPlane& plane, int rank, int world_size, int number) {
  const auto key = [&](int of) { return floe::str("save/", number, "/", of); };
  plane.call({Op::set, {key(rank)}, {std::string(200, 'x')}}, kLong);
  if (rank == 0) {
    std::vector<std::string> keys;
    for (int other = 0; other < world_size; ++other) keys.push_back(key(other));
    floe::require(plane.call({Op::get, keys}, kLong).has_value(), "the ranks did not come");
    plane.call({Op::set, {key(-1)}, {"done"}}, kLong);
  }
  floe::require(plane.call({Op::get, {key(-1)}}, kLong).has_value(), "rank 0 did not answer");
}

void add_up(ControlPlane& plane) {
  for (int i = 0; i < kAdds; ++i) plane.call({Op::add, {"sum"}, {}, 1}, kLong);
}

void wait_for(ControlPlane& plane, const char* key) {
  floe::require(plane.call({Op::wait, {key}}, kLong).has_value(), key, " did not come");
}
void tell(ControlPlane& plane, const char* key) { plane.call({Op::set, {key}, {"1"}}, kLong); }

void be_a_rank(int rank, int world_size, int port) {
  const auto plane = ControlPlane::join(
      member(rank, world_size),
      [&](std::string&) {
        return Address{"127.0.0.1", port};
      },
      kLong);
  plane->set_state([] { return "forward\t1"; });
  wait_for(*plane, "save");
  for (int i = 0; i < kSaves; ++i) exchange(*plane, rank, world_size, i);
  wait_for(*plane, "add");
  add_up(*plane);
  tell(*plane, floe::str("added/", rank).c_str());
  floe::require(plane->first_failure(kLong).has_value(), "no failure was told");
}

int be_the_others(int world_size, int port) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<std::thread> threads;
  for (int rank = 1; rank < world_size; ++rank)
    threads.emplace_back(be_a_rank, rank, world_size, port);
  for (std::thread& thread : threads) thread.join();
  return 0;
}

double processor_s() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return double(time.tv_sec) + double(time.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// What rank 0 did since the last part.
class Meter {
 public:
  explicit Meter(ControlPlane& plane) : plane_(plane) {}

  void part(const char* name) {
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    const double worked = processor_s() - worked_;
    const auto messages = plane_.num_requests() - messages_;
    std::printf("%-34s %8lld messages %8.3f s %8.0f messages/s %7.3f CPU-s %6.1f us/message\n",
                name, static_cast<long long>(messages), seconds, double(messages) / seconds, worked,
                messages ? worked / double(messages) * 1e6 : 0.0);
    began_ = Clock::now();
    worked_ = processor_s();
    messages_ = plane_.num_requests();
  }

 private:
  ControlPlane& plane_;
  Clock::time_point began_ = Clock::now();
  double worked_ = processor_s();
  std::int64_t messages_ = plane_.num_requests();
};

int run(int world_size, double seconds) {
  UniqueFd listening = listen_at(0, /*loopback_only=*/true, Clock::now());
  const int port = port_of(listening);
  const pid_t others = ::fork();
  floe::require(others >= 0, "cannot fork");
  if (others == 0) {
    listening.reset();
    ::_exit(be_the_others(world_size, port));
  }
  const auto begin = Clock::now();
  const auto plane = ControlPlane::serve(member(0, world_size), std::move(listening), kLong);
  std::printf("%d ranks have met after %.3f s\n", world_size,
              std::chrono::duration<double>(Clock::now() - begin).count());
  // All have said who they are, and that they wait for the first part.
  while (plane->num_requests() < 2 * std::int64_t{world_size - 1}) std::this_thread::sleep_for(1ms);
  Meter meter(*plane);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  meter.part("between steps: nothing");
  tell(*plane, "save");
  for (int i = 0; i < kSaves; ++i) exchange(*plane, 0, world_size, i);
  meter.part(floe::str(kSaves, " exchanges, as of a save").c_str());
  for (int i = 0; i < 10; ++i) {
    const auto states = plane->states();
    floe::require(std::count(states.begin() + 1, states.end(), "forward\t1") == world_size - 1,
                  "not all ranks say what they do");
  }
  meter.part("10 questions what all are doing");
  tell(*plane, "add");
  std::vector<std::string> added;
  for (int rank = 1; rank < world_size; ++rank) added.push_back(floe::str("added/", rank));
  floe::require(plane->call({Op::wait, added}, kLong).has_value(), "the sums did not come");
  meter.part("all at once, as fast as they can");
  plane->announce_failure("the end of the load");
  int status = 0;
  ::waitpid(others, &status, 0);
  meter.part("a failure, told to all");
  return status == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const long world_size = argc == 3 ? std::strtol(argv[1], nullptr, 10) : 0;
    floe::require<floe::ConfigError>(world_size >= 2, "usage: control_load RANKS SECONDS");
    return run(static_cast<int>(world_size), std::strtod(argv[2], nullptr));
  } catch (const std::exception& e) {
    floe::log::error(e.what());
    return 1;
  }
}
