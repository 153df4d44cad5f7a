// Ranks that do not come, do not answer or die: everybody else finds out, in time, and says where.
#include <ATen/ATen.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <vector>

#include "floe/comm/shared_folder.h"
#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/launch/environment.h"
#include "tests/support/ranks.h"
#include "tests/support/text.h"

namespace floe::comm::comm_failure_test {
namespace {

using namespace std::chrono_literals;

class Clock {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

std::shared_ptr<World> join_with(std::chrono::milliseconds timeout) {
  WorldOptions options;
  options.timeout = timeout;
  options.rendezvous = find_rendezvous({}, process_environment());
  return World::join(options);
}

// The message of the CommError that `call` must throw.
template <class F>
std::string comm_error(F&& call) {
  try {
    call();
  } catch (const CommError& e) {
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Join, NobodyServesTheStore) {
  WorldOptions options;
  options.timeout = 1500ms;
  options.rendezvous = {
      .rank = 1, .world_size = 2, .host = "127.0.0.1", .port = launch::free_port()};
  const Clock clock;
  const std::string text = comm_error([&] { World::join(options); });
  EXPECT_TRUE(has(text, "could not join rank 0 within 1.5 s: Connection refused")) << text;
  EXPECT_LT(clock.seconds(), 15);
}

TEST(Join, AnotherRankNeverComes) {
  WorldOptions options;
  options.timeout = 1500ms;
  options.rendezvous = {
      .rank = 0, .world_size = 2, .host = "127.0.0.1", .port = launch::free_port()};
  const Clock clock;
  const std::string text = comm_error([&] { World::join(options); });
  EXPECT_TRUE(has(text, "rank 0 of 2 is not joined by all: rank 1 (rank 0 is here) did not come"))
      << text;
  EXPECT_FALSE(has(text, "frame #")) << "a stack trace is no sentence: " << text;
  EXPECT_GT(clock.seconds(), 1);
  EXPECT_LT(clock.seconds(), 15);
}

// A write to a rank that is gone must end in an error, not end the process without a word.
TEST_RANKS(Join, ABrokenPipeIsNoSignal, 2) {
  const auto handler = [] {
    struct sigaction current {};
    sigaction(SIGPIPE, nullptr, &current);
    return current.sa_handler;
  };
  const sighandler_t own = [](int) {};
  signal(SIGPIPE, process_environment()("RANK") == "0" ? own : SIG_DFL);
  auto world = join_with(30s);
  if (world->rank() == 0) {
    EXPECT_EQ(handler(), own) << "a handler of the program stays";
  } else {
    EXPECT_EQ(handler(), SIG_IGN);
  }
  world->group()->barrier("done");
}

using Collective = std::function<void(Group&)>;

const std::vector<std::pair<std::string, Collective>>& collectives() {
  static const std::vector<std::pair<std::string, Collective>> all{
      {"all-gather",
       [](Group& g) {
         g.all_gather(at::empty({3'000'000}), at::ones({1'000'000}), "the label").wait();
       }},
      {"reduce-scatter",
       [](Group& g) {
         g.reduce_scatter(at::empty({1'000'000}), at::ones({3'000'000}), Reduce::sum, "the label")
             .wait();
       }},
      {"all-reduce",
       [](Group& g) { g.all_reduce(at::ones({2'000'000}), Reduce::sum, "the label").wait(); }},
      {"all-reduce",
       [](Group& g) { g.all_reduce(at::ones({10}), Reduce::sum, "the label").wait(); }},
      {"broadcast", [](Group& g) { g.broadcast(at::ones({1'000'000}), 2, "the label").wait(); }},
      {"all-reduce", [](Group& g) { g.barrier("the label"); }},
  };
  return all;
}

std::string place(const std::string& kind, int rank) {
  return str(kind, " 'the label' on rank ", rank, " of 3 (group world) failed");
}

// Rank 2 stays away from collective number `which`.
void one_never_calls(std::size_t which) {
  auto world = join_with(1500ms);
  const auto& [kind, collective] = collectives()[which];
  world->group()->all_reduce(at::ones({100'000}), Reduce::sum, "warm").wait();
  if (world->rank() == 2) {
    // Until the others are done, so that they see a silent rank and not a dead one.
    for (const int rank : {0, 1}) EXPECT_TRUE(world->lookup(str("done/", rank), 20s));
    return;
  }
  const Clock clock;
  const std::string text = comm_error([&] { collective(*world->group()); });
  EXPECT_TRUE(has(text, place(kind, world->rank()))) << text;
  EXPECT_FALSE(has(text, "Exception raised from")) << text;
  EXPECT_LT(clock.seconds(), 12);
  world->publish(str("done/", world->rank()), "yes");
  if (world->rank() == 0) {
    EXPECT_TRUE(world->lookup("done/1", 20s));  // the store must outlive its readers
  }
}

TEST_RANKS(Timeout, AllGather, 3) { one_never_calls(0); }
TEST_RANKS(Timeout, ReduceScatter, 3) { one_never_calls(1); }
TEST_RANKS(Timeout, AllReduce, 3) { one_never_calls(2); }
TEST_RANKS(Timeout, SmallAllReduce, 3) { one_never_calls(3); }
TEST_RANKS(Timeout, Broadcast, 3) { one_never_calls(4); }
TEST_RANKS(Timeout, Barrier, 3) { one_never_calls(5); }

// Rank 2 is killed while the others wait for it in collective number `which`, long
// before any timeout.
void one_is_killed(const std::string& name, std::size_t which) {
  if (!test::is_rank()) {
    const auto outcome = test::start_ranks("Killed", name, 3, 40s);
    for (const std::size_t rank : {0, 1})
      EXPECT_EQ(outcome.exit_codes[rank], 0) << "rank " << rank << " said:\n"
                                             << outcome.outputs[rank];
    EXPECT_EQ(outcome.exit_codes[2], 128 + SIGKILL) << outcome.outputs[2];
    return;
  }
  auto world = join_with(120s);
  const auto& [kind, collective] = collectives()[which];
  for (int i = 0; i < 3; ++i)
    world->group()->all_reduce(at::ones({100'000}), Reduce::sum, "warm").wait();
  if (world->rank() == 2) {
    std::this_thread::sleep_for(300ms);
    raise(SIGKILL);
  }
  const Clock clock;
  const std::string text = comm_error([&] { collective(*world->group()); });
  EXPECT_TRUE(has(text, place(kind, world->rank()))) << text;
  EXPECT_LT(clock.seconds(), 10);
  // So does everything afterwards.
  const std::string later = comm_error(
      [&] { world->group()->all_reduce(at::ones({10}), Reduce::sum, "afterwards").wait(); });
  EXPECT_TRUE(has(later, "'afterwards'")) << later;
  EXPECT_LT(clock.seconds(), 10);
}

// Large tensors go through sockets, on one host too, while the object lives; also in ranks that are
// started meanwhile.
struct OverSockets {
  OverSockets() { setenv("FLOE_SAME_HOST_MEMORY", "0", 1); }
  ~OverSockets() { unsetenv("FLOE_SAME_HOST_MEMORY"); }
};

// Rank 1 is killed while the data that rank 0 sends is half written: Gloo itself does not wake such
// a send.
void killed_while_it_is_being_sent_to(const std::string& name) {
  if (!test::is_rank()) {
    const auto outcome = test::start_ranks("Killed", name, 2, 40s);
    EXPECT_EQ(outcome.exit_codes[0], 0) << outcome.outputs[0];
    EXPECT_EQ(outcome.exit_codes[1], 128 + SIGKILL) << outcome.outputs[1];
    return;
  }
  auto world = join_with(120s);
  const at::Tensor large = at::ones({64 << 20}, at::kByte);
  if (world->rank() == 1) {
    const Work arriving = world->group()->broadcast(large, 0, "large");
    std::this_thread::sleep_for(300ms);  // the worker has begun to receive
    world->publish("pid", str(getpid()));
    raise(SIGSTOP);
  }
  const int pid = std::stoi(world->lookup("pid", 20s).value());
  std::this_thread::sleep_for(300ms);  // it has stopped
  Work leaving = world->group()->broadcast(large, 0, "large");
  std::this_thread::sleep_for(300ms);  // the connection is full
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  const Clock clock;
  const std::string text = comm_error([&] { leaving.wait(); });
  EXPECT_TRUE(has(text, "broadcast 'large' on rank 0 of 2 (group world) failed")) << text;
  // Whoever notices first: the group, whose connection broke, or the control plane.
  EXPECT_TRUE(has(text, "the connection to rank 1 is lost") || has(text, "rank 1 has failed"))
      << text;
  EXPECT_LT(clock.seconds(), 10);
}
TEST(Killed, WhileItIsBeingSentTo) { killed_while_it_is_being_sent_to("WhileItIsBeingSentTo"); }
TEST(Killed, WhileItIsBeingSentToOverSockets) {
  const OverSockets sockets;
  killed_while_it_is_being_sent_to("WhileItIsBeingSentToOverSockets");
}

// The connections of this process to other ranks; those to the store stay out.
std::vector<int> connections() {
  const auto store = std::strtol(std::getenv("MASTER_PORT"), nullptr, 10);
  std::vector<int> found;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in own{}, other{};
    socklen_t own_size = sizeof(own), other_size = sizeof(other);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) != 0) continue;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_size) != 0) continue;
    // The ports of an IPv6 address lie at the same place.
    if (ntohs(own.sin_port) != store && ntohs(other.sin_port) != store) found.push_back(fd);
  }
  return found;
}

// The same, but rank 1 lives on, if only just: its connection ends, and no control plane tells.
void lost_while_it_is_being_sent_to(const std::string& name) {
  if (!test::is_rank()) {
    const auto outcome = test::start_ranks("Lost", name, 2, 40s);
    EXPECT_EQ(outcome.exit_codes[0], 0) << outcome.outputs[0];
    EXPECT_EQ(outcome.exit_codes[1], 128 + SIGKILL) << outcome.outputs[1];
    return;
  }
  auto world = join_with(120s);
  const at::Tensor large = at::ones({64 << 20}, at::kByte);
  if (world->rank() == 1) {
    const Work arriving = world->group()->broadcast(large, 0, "large");
    std::this_thread::sleep_for(300ms);  // the worker has begun to receive
    const auto sockets = connections();
    ASSERT_FALSE(sockets.empty());
    sigset_t asked;
    sigemptyset(&asked);
    sigaddset(&asked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &asked, nullptr);
    const pid_t helper = fork();
    if (helper == 0) {  // ends the connections of its parent, which has stopped
      const timespec limit{60, 0};
      if (sigtimedwait(&asked, nullptr, &limit) == SIGUSR1)
        for (const int fd : sockets) shutdown(fd, SHUT_RDWR);
      _exit(0);
    }
    world->publish("pids", str(getpid(), " ", helper));
    raise(SIGSTOP);
  }
  pid_t stopped = 0, helper = 0;
  std::istringstream(world->lookup("pids", 20s).value()) >> stopped >> helper;
  std::this_thread::sleep_for(300ms);  // it has stopped
  Work leaving = world->group()->broadcast(large, 0, "large");
  std::this_thread::sleep_for(300ms);  // the connection is full
  ASSERT_EQ(kill(helper, SIGUSR1), 0);
  const Clock clock;
  const std::string text = comm_error([&] { leaving.wait(); });
  EXPECT_TRUE(has(text, "the connection to rank 1 is lost")) << text;
  EXPECT_LT(clock.seconds(), 10);
  EXPECT_EQ(kill(stopped, SIGKILL), 0);
}
TEST(Lost, WhileItIsBeingSentTo) { lost_while_it_is_being_sent_to("WhileItIsBeingSentTo"); }
TEST(Lost, WhileItIsBeingSentToOverSockets) {
  const OverSockets sockets;
  lost_while_it_is_being_sent_to("WhileItIsBeingSentToOverSockets");
}

TEST(Killed, AllGather) { one_is_killed("AllGather", 0); }
TEST(Killed, ReduceScatter) { one_is_killed("ReduceScatter", 1); }
TEST(Killed, AllReduce) { one_is_killed("AllReduce", 2); }
TEST(Killed, Broadcast) { one_is_killed("Broadcast", 4); }
TEST(Killed, Barrier) { one_is_killed("Barrier", 5); }

// Collectives that were issued before the death and are waited for after it.
TEST(Killed, InFlight) {
  if (!test::is_rank()) {
    const auto outcome = test::start_ranks("Killed", "InFlight", 3, 40s);
    for (const std::size_t rank : {0, 1})
      EXPECT_EQ(outcome.exit_codes[rank], 0) << "rank " << rank << " said:\n"
                                             << outcome.outputs[rank];
    return;
  }
  auto world = join_with(120s);
  Group& group = *world->group();
  group.barrier("warm");
  if (world->rank() == 2) raise(SIGKILL);
  std::vector<Work> works;
  const at::Tensor whole = at::ones({3'000'000}), slice = at::ones({1'000'000});
  const Clock clock;
  int failed = 0;
  for (int i = 0; i < 5; ++i) {
    try {
      works.push_back(group.reduce_scatter(at::empty({1'000'000}), whole, Reduce::sum, "r"));
      works.push_back(group.all_gather(at::empty({3'000'000}), slice, "g"));
    } catch (const CommError&) {
      failed += 1;  // an all-gather may find out when it is issued
    }
  }
  for (Work& work : works) {
    try {
      work.wait();
    } catch (const CommError&) {
      failed += 1;
    }
  }
  EXPECT_EQ(failed, 10);
  EXPECT_LT(clock.seconds(), 10);
}

// A rank that fails says why; the others, who only see a broken connection, learn the cause.
TEST(FirstFailure, TheCauseReachesTheOthers) {
  if (!test::is_rank()) {
    const auto outcome = test::start_ranks("FirstFailure", "TheCauseReachesTheOthers", 3, 40s);
    EXPECT_EQ(outcome.exit_codes, (std::vector<int>{0, 1, 0})) << join(outcome.outputs, "\n---\n");
    EXPECT_TRUE(has(outcome.outputs[1], "the disk is full")) << outcome.outputs[1];
    return;
  }
  auto world = join_with(60s);
  world->group()->barrier("warm");
  if (world->rank() == 1) {
    world->announce_failure("the disk is full");
    throw Error("the disk is full");
  }
  const std::string text = comm_error([&] { world->group()->barrier("next step"); });
  EXPECT_TRUE(has(text, "'next step'")) << text;
  world->announce_failure(text);  // too late: the first stays
  EXPECT_EQ(world->first_failure(5s), "rank 1: the disk is full");
  world->publish(str("read/", world->rank()), "");
  world->lookup(str("read/", 2 - world->rank()), 5s);
}

// Who waits for what another rank is to say hears of its end instead, long before the timeout; and
// what it has said before its end is heard.
TEST(FirstFailure, EndsAWaitForWhatARankSays) {
  if (!test::is_rank()) {
    const auto outcome = test::start_ranks("FirstFailure", "EndsAWaitForWhatARankSays", 3, 60s);
    EXPECT_LT(outcome.seconds, 30);
    EXPECT_EQ(outcome.exit_codes, (std::vector<int>{1, 1, 1})) << join(outcome.outputs, "\n---\n");
    for (const std::size_t other : {0, 2}) {
      const std::string& said = outcome.outputs[other];
      EXPECT_TRUE(has(said, str("because of rank 1: the disk is full ", kBecauseOf, "rank 1)")))
          << said;
      EXPECT_EQ(test::times(said, "the disk is full"), 1) << said;
    }
    return;
  }
  auto world = join_with(300s);
  std::exit(guarded(*world, [&] {
    if (world->rank() == 1) {
      world->publish("said", "before its end");
      world->announce_failure("the disk is full");
      throw Error("the disk is full");
    }
    while (!world->first_failure(1s)) {
    }
    EXPECT_EQ(world->hear("said", "rank 1 did not say it"), "before its end");
    if (world->rank() == 0) find_folder_problem(*world, "/tmp", 1s);
    world->hear("not said", "rank 1 did not say it");
  }));
}

// Without rank 0 there is no store: that is the failure, and nothing hangs.
TEST(FirstFailure, TheStoreDiesWithItsRank) {
  if (!test::is_rank()) {
    const auto outcome = test::start_ranks("FirstFailure", "TheStoreDiesWithItsRank", 2, 40s);
    EXPECT_EQ(outcome.exit_codes, (std::vector<int>{128 + SIGKILL, 0})) << outcome.outputs[1];
    return;
  }
  auto world = join_with(60s);
  world->group()->barrier("warm");
  if (world->rank() == 0) raise(SIGKILL);
  comm_error([&] { world->group()->barrier("next step"); });
  const Clock clock;
  world->announce_failure("nobody hears this");
  EXPECT_TRUE(
      has(world->first_failure(2s).value(), "rank 0: its process has ended without a word"));
  EXPECT_TRUE(world->failed_rank_is_gone());
  EXPECT_THROW(world->publish("key", "value"), CommError);
  EXPECT_FALSE(world->lookup("key", 20s));
  EXPECT_LT(clock.seconds(), 10);
}

// Pending and later collectives of a rank that gives up fail on that rank, and then on the others.
TEST_RANKS(Abort, FreesARankThatWaits, 2) {
  auto world = join_with(60s);
  world->group()->barrier("warm");
  const Clock clock;
  if (world->rank() == 0) {
    std::thread other([&] {
      std::this_thread::sleep_for(300ms);
      world->group()->abort();
    });
    const at::Tensor whole = at::empty({200'000}), slice = at::ones({100'000});
    Work gather = world->group()->all_gather(whole, slice, "pending gather");
    Work reduce = world->group()->all_reduce(whole.clone(), Reduce::sum, "pending reduce");
    EXPECT_TRUE(has(comm_error([&] { gather.wait(); }), "'pending gather'"));
    EXPECT_TRUE(has(comm_error([&] { reduce.wait(); }), "'pending reduce'"));
    other.join();
    EXPECT_TRUE(has(comm_error([&] { world->group()->barrier("later"); }), "'later'"));
    world->publish("aborted", "yes");
  } else {
    EXPECT_TRUE(world->lookup("aborted", 20s));
  }
  EXPECT_LT(clock.seconds(), 10);
}

// A rank that has announced its failure, and goes on, is not waited for in any group, nor is one
// that took the store with it.
TEST_RANKS(Watched, AFailureThatIsTold, 4) {
  auto world = join_with(60s);
  const Mesh& mesh = world->mesh(2);
  world->group()->barrier("warm");
  const Clock clock;
  if (world->rank() == 3) {
    std::this_thread::sleep_for(1500ms);  // longer than it takes to look once
    EXPECT_NO_THROW(world->read(at::zeros({1}))) << "nothing has happened yet";
    world->announce_failure("no more pictures");
    EXPECT_TRUE(world->lookup("given up/2", 30s));
    return;
  }
  if (world->rank() == 2) {
    EXPECT_TRUE(has(comm_error([&] { mesh.shard->barrier("pair"); }), "'pair'"));
    EXPECT_TRUE(has(comm_error([&] { mesh.replicate->barrier("column"); }), "'column'"));
  }
  EXPECT_TRUE(has(comm_error([&] { world->group()->barrier("all"); }), "'all'"));
  EXPECT_LT(clock.seconds(), 20);
  EXPECT_EQ(world->first_failure(0ms), "rank 3: no more pictures");
  world->publish(str("given up/", world->rank()), "");
  if (world->rank() == 0) {  // the store's
    for (const int other : {1, 2}) EXPECT_TRUE(world->lookup(str("given up/", other), 30s));
  }
}

TEST(Watched, AStoreThatIsGone) {
  if (!test::is_rank()) {
    const auto outcome = test::start_ranks("Watched", "AStoreThatIsGone", 3, 50s);
    EXPECT_EQ(outcome.exit_codes, (std::vector<int>{128 + SIGKILL, 0, 0})) << outcome.outputs[1];
    return;
  }
  auto world = join_with(60s);
  world->group()->barrier("warm");
  if (world->rank() == 0) raise(SIGKILL);
  const Clock clock;
  std::this_thread::sleep_for(3s);
  comm_error([&] { world->group()->all_reduce(at::ones({1}), Reduce::sum, "later").wait(); });
  EXPECT_LT(clock.seconds(), 10);
}

}  // namespace
}  // namespace floe::comm::comm_failure_test
