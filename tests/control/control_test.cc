// The control plane, with a thread per rank: who may join, what they share, who has failed.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "floe/control/connection.h"
#include "floe/control/control_plane.h"
#include "floe/control/hello.h"
#include "floe/core/error.h"
#include "floe/core/host.h"

namespace floe::control::control_test {
namespace {

using namespace std::chrono_literals;
using Plane = std::unique_ptr<ControlPlane>;

double seconds_of(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Member member(int rank, int world_size) {
  Member self;
  self.rank = rank;
  self.world_size = world_size;
  self.job = "job 7";
  self.run = "/runs/a";
  self.version = "1";
  self.host = "here";
  self.host_id = "here/1";
  self.pid = 100 + rank;
  return self;
}

// A port that rank 0 listens at, and what ranks are told to go there.
struct Place {
  UniqueFd listening = listen_at(0, /*loopback_only=*/true, Clock::now());
  int port = port_of(listening);

  ControlPlane::Where where() const {
    return [port = port](std::string&) { return Address{"127.0.0.1", port}; };
  }
};

std::vector<Plane> meet(std::vector<Member> members) {
  Place place;
  std::vector<Plane> planes(members.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 1; r < members.size(); ++r)
    threads.emplace_back(
        [&, r] { planes[r] = ControlPlane::join(members[r], place.where(), 20s); });
  planes[0] = ControlPlane::serve(members[0], std::move(place.listening), 20s);
  for (std::thread& thread : threads) thread.join();
  return planes;
}

std::vector<Plane> meet(int world_size) {
  std::vector<Member> members;
  for (int rank = 0; rank < world_size; ++rank) members.push_back(member(rank, world_size));
  return meet(members);
}

// All at once, as ranks do; rank 0 waits for the others.
void leave(std::vector<Plane>& planes) {
  std::vector<std::thread> threads;
  for (Plane& plane : planes)
    if (plane) threads.emplace_back([&plane] { plane.reset(); });
  for (std::thread& thread : threads) thread.join();
}

template <class ErrorType>
std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const ErrorType& e) {
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Request request(Request::Op op, std::vector<std::string> keys, std::vector<std::string> values = {},
                std::int64_t number = 0) {
  return {op, std::move(keys), std::move(values), number};
}

TEST(Table, EveryOperation) {
  using enum Request::Op;
  Table table;
  EXPECT_FALSE(table.apply(request(get, {"a"})));
  table.apply(request(set, {"a", std::string("\0b", 2)}, {"1", std::string("\xff\0", 2)}));
  EXPECT_EQ(table.apply(request(get, {"a"}))->values, std::vector<std::string>{"1"});
  EXPECT_EQ(table.apply(request(get, {std::string("\0b", 2)}))->values[0].size(), 2u);
  EXPECT_EQ(*table.first_missing(request(wait, {"a", "c", "d"})), "c");
  EXPECT_FALSE(table.apply(request(wait, {"a", "c"})));
  EXPECT_EQ(table.apply(request(look, {"a", "c"}))->number, 1);
  EXPECT_EQ(table.apply(request(add, {"n"}, {}, 5))->number, 5);
  EXPECT_EQ(table.apply(request(add, {"n"}, {}, -7))->number, -2);
  EXPECT_EQ(table.apply(request(count, {}))->number, 3);
  EXPECT_EQ(table.apply(request(remove, {"n"}))->number, 1);
  EXPECT_EQ(table.apply(request(remove, {"n"}))->number, 0);
  table.apply(request(append, {"a"}, {"2"}));
  EXPECT_EQ(table.apply(request(get, {"a"}))->values[0], "12");
  EXPECT_EQ(table.apply(request(compare_set, {"a"}, {"12", "3"}))->values[0], "3");
  EXPECT_EQ(table.apply(request(compare_set, {"a"}, {"12", "4"}))->values[0], "3");
  EXPECT_EQ(table.apply(request(compare_set, {"x"}, {"no", "4"}))->values[0], "no");
  EXPECT_FALSE(table.apply(request(get, {"x"})));
  EXPECT_EQ(table.apply(request(compare_set, {"x"}, {"", "4"}))->values[0], "4");
  EXPECT_THROW(table.apply(request(add, {})), DataError);
  EXPECT_THROW(table.apply(request(set, {"a"})), DataError);
}

TEST(Frames, InPiecesAndDamaged) {
  const std::string frame = frame_of({{"a", 1}}) + frame_of({{"b", std::string(1000, 'x')}});
  FrameReader reader(2000);
  int count = 0;
  for (const char byte : frame) {
    reader.feed({&byte, 1});
    while (reader.next()) ++count;
  }
  EXPECT_EQ(count, 2);
  FrameReader small(100);
  small.feed(frame_of({{"b", std::string(1000, 'x')}}));
  EXPECT_THROW(small.next(), DataError);
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\1\0\0\0\1", 5),
        std::string("\2\0\0\0\xff\xff", 6)}) {
    FrameReader odd(2000);
    odd.feed(bytes);
    EXPECT_THROW(odd.next(), DataError);
  }
}

TEST(Control, OneProcess) {
  const Plane plane = ControlPlane::alone(member(0, 1));
  plane->call(request(Request::Op::set, {"k"}, {"v"}), 1s);
  EXPECT_EQ(plane->call(request(Request::Op::get, {"k"}), 1s)->values[0], "v");
  EXPECT_FALSE(plane->call(request(Request::Op::get, {"none"}), 50ms));
  plane->announce_failure("a cause");
  EXPECT_EQ(plane->first_failure(0ms)->cause, "a cause");
}

TEST(Control, ValuesReachWhoeverWaits) {
  auto planes = meet(4);
  EXPECT_EQ(planes[3]->members().size(), 4u);
  EXPECT_FALSE(planes[3]->on_several_hosts());
  std::vector<std::future<std::string>> waiting;
  for (const int rank : {0, 1, 2})
    waiting.push_back(std::async(std::launch::async, [&, rank] {
      return planes[static_cast<std::size_t>(rank)]
          ->call(request(Request::Op::get, {"a", "b"}), 10s)
          ->values[1];
    }));
  std::this_thread::sleep_for(50ms);
  planes[3]->call(request(Request::Op::set, {"a"}, {"1"}), 1s);
  planes[0]->call(request(Request::Op::set, {"b"}, {"two"}), 1s);
  for (auto& one : waiting) EXPECT_EQ(one.get(), "two");
  const double seconds = seconds_of(
      [&] { EXPECT_FALSE(planes[2]->call(request(Request::Op::get, {"never"}), 200ms)); });
  EXPECT_GE(seconds, 0.2);
  EXPECT_LT(seconds, 5);
  const double leaving = seconds_of([&] { leave(planes); });
  EXPECT_LT(leaving, 2) << "nobody had to be waited for";
}

TEST(Control, LargeValues) {
  auto planes = meet(2);
  const std::string large(32 << 20, 'x');
  planes[1]->call(request(Request::Op::set, {"large"}, {large}), 20s);
  EXPECT_EQ(planes[0]->call(request(Request::Op::get, {"large"}), 20s)->values[0], large);
  EXPECT_EQ(planes[1]->call(request(Request::Op::get, {"large"}), 20s)->values[0], large);
  leave(planes);
}

TEST(Control, AFailureReachesAll) {
  auto planes = meet(3);
  planes[2]->announce_failure("the disk is full");
  planes[1]->first_failure(5s);
  planes[1]->announce_failure("the connection to rank 2 is lost");  // an echo: the first stays
  for (const Plane& plane : planes) {
    const auto failure = plane->first_failure(5s);
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->rank, 2);
    EXPECT_EQ(failure->cause, "the disk is full");
  }
  // Who waits for something that depends on all ranks need not wait on; others may.
  EXPECT_TRUE(has(
      message<CommError>([&] { planes[0]->call(request(Request::Op::get, {"never"}), 20s, true); }),
      "rank 2: the disk is full"));
  planes[0]->call(request(Request::Op::set, {"after"}, {"yes"}), 1s);
  EXPECT_EQ(planes[1]->call(request(Request::Op::get, {"after"}), 5s)->values[0], "yes");
  leave(planes);
}

TEST(Control, WhatRanksAreDoing) {
  auto planes = meet(3);
  planes[0]->set_state([] { return "reads data"; });
  planes[1]->set_state([] { return "waits"; });
  const std::vector<std::string> wanted{"reads data", "waits", "nothing that it tells"};
  EXPECT_EQ(planes[0]->states(), wanted);
  EXPECT_EQ(planes[2]->states(), wanted);
  EXPECT_TRUE(planes[0]->rank_0_answers() && planes[2]->rank_0_answers());
  leave(planes);
}

TEST(Control, ThoseWhoLeaveHaveNotFailed) {
  auto planes = meet(3);
  planes[1].reset();
  std::this_thread::sleep_for(100ms);
  EXPECT_FALSE(planes[0]->first_failure(100ms));
  EXPECT_EQ(planes[2]->states()[1], "it has ended");
  leave(planes);
}

// ---- joining ----

TEST(Join, RankZeroMayComeLater) {
  const int port = Place().port;
  auto other = std::async(std::launch::async, [&] {
    return ControlPlane::join(
        member(1, 2),
        [&](std::string&) {
          return Address{"127.0.0.1", port};
        },
        20s);
  });
  std::this_thread::sleep_for(400ms);
  auto first = ControlPlane::serve(member(0, 2), listen_at(port, true, Clock::now() + 5s), 20s);
  auto second = other.get();
  std::vector<Plane> planes;
  planes.push_back(std::move(first));
  planes.push_back(std::move(second));
  leave(planes);
}

TEST(Join, MissingRanksAreNamed) {
  Place place;
  auto one = std::async(std::launch::async, [&] {
    return message<CommError>([&] { ControlPlane::join(member(3, 6), place.where(), 20s); });
  });
  const std::string said = message<CommError>(
      [&] { ControlPlane::serve(member(0, 6), std::move(place.listening), 1s); });
  EXPECT_TRUE(has(said, "ranks 1, 2, 4, 5 (ranks 0, 3 are here) did not come within 1 s")) << said;
  const std::string told = one.get();  // long before its own time is over
  EXPECT_TRUE(has(told, "ranks 1, 2, 4, 5 (ranks 0, 3 are here) did not come")) << told;
}

TEST(Join, NobodyListens) {
  const int port = Place().port;
  const std::string said = message<CommError>([&] {
    ControlPlane::join(
        member(1, 2),
        [&](std::string&) {
          return Address{"127.0.0.1", port};
        },
        500ms);
  });
  EXPECT_TRUE(
      has(said, "rank 1 of 2 on here could not join rank 0 within 0.5 s: Connection refused"))
      << said;
  EXPECT_TRUE(has(said, "that is this very host")) << said;
}

TEST(Join, APortInUseIsSaid) {
  const Place place;
  const double seconds = seconds_of([&] {
    const std::string said =
        message<CommError>([&] { listen_at(place.port, true, Clock::now() + 300ms); });
    EXPECT_TRUE(has(said, str("cannot listen at port ", place.port))) << said;
    EXPECT_TRUE(has(said, "set MASTER_PORT")) << said;
  });
  EXPECT_LT(seconds, 5);
}

// Rank 0 of two ranks, and what a process that comes with `change`d words is told.
struct Refusal {
  std::string refused, served;
};
Refusal come_with(const std::function<void(Member&)>& change, const std::string& job = "job 7") {
  Place place;
  const ControlPlane::Where where = place.where();
  auto server = std::async(std::launch::async, [&]() -> std::string {
    Member self = member(0, 2);
    self.job = job;
    try {
      auto plane = ControlPlane::serve(self, std::move(place.listening), 10s);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  });
  Member odd = member(1, 2);
  odd.job = job;
  const Member right = odd;
  change(odd);
  Refusal refusal;
  refusal.refused = message<Error>([&] { ControlPlane::join(odd, where, 10s); });
  // The right one still gets in, unless the job cannot go on.
  try {
    ControlPlane::join(right, where, 1s);
  } catch (const Error&) {
  }
  refusal.served = server.get();
  return refusal;
}

TEST(Refused, AnotherJob) {
  const Refusal refusal = come_with([](Member& m) { m.job = "job 8"; });
  EXPECT_TRUE(has(refusal.refused, "was refused by rank 0 at 127.0.0.1:")) << refusal.refused;
  EXPECT_TRUE(has(refusal.refused, "two jobs use one port")) << refusal.refused;
  EXPECT_TRUE(has(refusal.refused, "'job 7'") && has(refusal.refused, "'job 8'"));
  EXPECT_EQ(refusal.served, "") << "the job that was there goes on";
}

TEST(Refused, AnotherRunWithoutAName) {
  const Refusal refusal = come_with([](Member& m) { m.run = "/runs/b"; }, "");
  EXPECT_TRUE(has(refusal.refused,
                  "rank 1 on here was started with the run folder /runs/b, rank 0 "
                  "on here with /runs/a"))
      << refusal.refused;
  EXPECT_EQ(refusal.served, "") << "it may be another job: the one that was there goes on";
}

TEST(Refused, AnotherWorldSizeOfTheSameRunWithoutAName) {
  const Refusal refusal = come_with([](Member& m) { m.world_size = 3; }, "");
  EXPECT_TRUE(has(refusal.served, "a world size of 3")) << refusal.served;
}

TEST(Refused, AnotherWorldSizeOfTheSameJob) {
  const Refusal refusal = come_with([](Member& m) { m.world_size = 3; });
  EXPECT_TRUE(has(refusal.refused, "a world size of 3, rank 0 on here with 2")) << refusal.refused;
  EXPECT_TRUE(has(refusal.served, "a world size of 3")) << refusal.served;
}

TEST(Refused, AnotherVersion) {
  const Refusal refusal = come_with([](Member& m) { m.version = "2"; });
  EXPECT_TRUE(has(refusal.refused, "was started with floe 2, rank 0 on here with 1"))
      << refusal.refused;
  EXPECT_NE(refusal.served, "");
}

// Nor would those who were welcome do better when they are started again.
TEST(Refused, AnotherVersionEndsAllAsAWrongConfiguration) {
  Place place;
  const ControlPlane::Where where = place.where();
  auto served = std::async(std::launch::async, [&] {
    return message<ConfigError>(
        [&] { ControlPlane::serve(member(0, 3), std::move(place.listening), 10s); });
  });
  auto welcome = std::async(std::launch::async, [&] {
    return message<ConfigError>([&] { ControlPlane::join(member(1, 3), where, 10s); });
  });
  std::this_thread::sleep_for(500ms);  // it waits for the third
  Member odd = member(2, 3);
  odd.version = "2";
  message<ConfigError>([&] { ControlPlane::join(odd, where, 10s); });
  for (const std::string& said : {served.get(), welcome.get()})
    EXPECT_TRUE(has(said, "the ranks could not meet") && has(said, "was started with floe 2"))
        << said;
}

TEST(Refused, ASecondRankZero) {
  const Refusal refusal = come_with([](Member& m) { m.rank = 0; });
  EXPECT_TRUE(has(refusal.refused, "says that it is rank 0 of 2")) << refusal.refused;
}

// What is no rank at all does not disturb those who are.
TEST(Refused, Strangers) {
  Place place;
  const int port = place.port;
  std::vector<UniqueFd> strangers;
  const std::vector<std::string> said = {"", "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                         std::string("\xff\xff\xff\xff", 4),
                                         frame_of({{"op", 0}, {"id", 1}}), frame_of({{"floe", 1}})};
  for (const std::string& text : said) {
    std::string why;
    strangers.push_back(connect_to({"127.0.0.1", port}, Clock::now() + 5s, why));
    ASSERT_TRUE(strangers.back()) << why;
    ASSERT_EQ(::send(strangers.back().get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  auto other = std::async(std::launch::async,
                          [&] { return ControlPlane::join(member(1, 2), place.where(), 20s); });
  std::vector<Plane> planes(2);
  planes[0] = ControlPlane::serve(member(0, 2), std::move(place.listening), 20s);
  planes[1] = other.get();
  EXPECT_FALSE(planes[0]->first_failure(100ms));
  leave(planes);
}

// ---- ranks that are gone ----

// A rank by hand: it says who it is, and then whatever the test wants.
struct RawRank {
  RawRank(int port, const Member& self) {
    std::string why;
    connection.emplace(connect_to({"127.0.0.1", port}, Clock::now() + 5s, why));
    connection->send(message_of(self));
  }
  std::optional<Connection> connection;
};

TEST(Gone, WithoutAWord) {
  Place place;
  const int port = place.port;
  RawRank raw(port, member(1, 3));
  auto other = std::async(std::launch::async,
                          [&] { return ControlPlane::join(member(2, 3), place.where(), 20s); });
  std::vector<Plane> planes(2);
  planes[0] = ControlPlane::serve(member(0, 3), std::move(place.listening), 20s);
  planes[1] = other.get();
  raw.connection.reset();
  for (const Plane& plane : planes) {
    const auto failure = plane->first_failure(5s);
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->rank, 1);
    EXPECT_TRUE(failure->is_gone);
    EXPECT_TRUE(has(failure->cause, "ended without a word")) << failure->cause;
  }
  leave(planes);
}

TEST(Many, EveryRankIsToldOfAllInFewBytes) {
  std::vector<Member> members;
  for (int rank = 0; rank < 1024; ++rank) {
    Member& one = members.emplace_back(member(rank, 1024));
    one.local_rank = rank % 8;
    one.host = "node-with-a-long-name-" + std::to_string(rank / 8);
    one.host_id = one.host + "/0d9b7a0c-5a1f-4b7e-9d1f-0d9b7a0c5a1f";
    one.address = "10.0.0." + std::to_string(rank / 8);
    one.device = "cuda:" + std::to_string(rank % 8);
    one.pid = 100'000 + rank;
  }
  const std::string frame = frame_of({{"members", message_of(members)}});
  EXPECT_LT(frame.size(), 40u * members.size());
  FrameReader reader(1 << 20);
  reader.feed(frame);
  const auto told = members_of(reader.next()->at("members"), members[7]);
  ASSERT_EQ(told.size(), members.size());
  for (std::size_t i = 0; i < told.size(); ++i)
    EXPECT_EQ(message_of(told[i]), message_of(members[i])) << i;
  EXPECT_THROW(members_of({{"texts", {"a"}}, {"list", {{0, 0, 1, 0, 0, 0}}}}, members[0]),
               DataError);
}

// Rank 0 would else keep every request whose sender has stopped waiting, and answer all of them.
TEST(Many, WhatNobodyWaitsForAnyMoreIsNotAnswered) {
  Place place;
  RawRank raw(place.port, member(1, 2));
  Plane server = ControlPlane::serve(member(0, 2), std::move(place.listening), 20s);
  const auto ask = [&](std::int64_t id, const Request& request) {
    Message message{{"id", id}};
    put(message, request);
    raw.connection->send(message);
  };
  for (std::int64_t id = 1; id <= 50; ++id) {
    ask(id, request(Request::Op::get, {"late"}));
    raw.connection->send({{"drop", id}});
  }
  ask(51, request(Request::Op::get, {"late"}));
  ask(52, request(Request::Op::set, {"late"}, {"1"}));
  std::vector<std::int64_t> answered;
  while (answered.size() < 2) {
    raw.connection->receive();
    while (const auto message = raw.connection->next())
      if (message->contains("id")) answered.push_back(message->at("id").get<std::int64_t>());
    ASSERT_EQ(raw.connection->ended(), "");
  }
  std::sort(answered.begin(), answered.end());
  EXPECT_EQ(answered, (std::vector<std::int64_t>{51, 52}));
  raw.connection->send({{"bye", true}});
}

TEST(Many, AQuestionIsAskedOnceHoweverLongItWaits) {
  std::vector<Plane> planes = meet(2);
  const std::int64_t before = planes[0]->num_requests();
  {
    ControlPlane::Question question(*planes[1], request(Request::Op::get, {"k"}));
    for (int i = 0; i < 20; ++i) EXPECT_FALSE(question.wait(1ms));
    planes[0]->call(request(Request::Op::set, {"k"}, {"v"}), 5s);
    const auto reply = question.wait(5s);
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->values, std::vector<std::string>{"v"});
  }
  EXPECT_EQ(planes[0]->num_requests() - before, 2) << "one that asks, one that sets";
  leave(planes);
}

TEST(Many, OneRankIsAskedWithoutTheOthers) {
  std::vector<Plane> planes = meet(4);
  for (std::size_t rank = 0; rank < planes.size(); ++rank)
    planes[rank]->set_state([rank] { return "busy " + std::to_string(rank); });
  const std::int64_t before = planes[0]->num_requests();
  EXPECT_EQ(planes[1]->state_of(3), "busy 3");
  EXPECT_EQ(planes[0]->num_requests() - before, 2) << "the question and one answer";
  EXPECT_EQ(planes[1]->state_of(0), "busy 0");
  EXPECT_EQ(planes[0]->state_of(2), "busy 2");
  EXPECT_EQ(planes[2]->states()[3], "busy 3");
  leave(planes);
}

// Runs it in a process of its own, whose limits are its own; its exit code.
int in_a_process(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Many, TheLimitOfOpenFilesIsRaisedAsFarAsItGoes) {
  const auto allowed = [](rlim_t soft, rlim_t hard, std::int64_t wanted) {
    return in_a_process([&] {
      const rlimit limit{soft, hard};
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 255;
      return static_cast<int>(allow_files(wanted));
    });
  };
  EXPECT_EQ(allowed(40, 200, 100), 100);
  EXPECT_EQ(allowed(40, 200, 250), 200) << "the hard limit";
  EXPECT_EQ(allowed(90, 200, 50), 90) << "it is never lowered";
  const int refused = in_a_process([] {
    const rlimit limit{100, 100};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 255;
    try {
      Place place;
      ControlPlane::serve(member(0, 200), std::move(place.listening), 1s);
    } catch (const ConfigError& e) {
      return has(e.what(), "may have 100 files open, and needs 264") ? 7 : 8;
    }
    return 9;
  });
  EXPECT_EQ(refused, 7);
}

TEST(Gone, WhileTheOthersJoin) {
  Place place;
  const int port = place.port;
  RawRank raw(port, member(1, 4));
  auto other = std::async(std::launch::async, [&] {
    return message<CommError>([&] { ControlPlane::join(member(2, 4), place.where(), 20s); });
  });
  auto server = std::async(std::launch::async, [&] {
    return message<CommError>(
        [&] { ControlPlane::serve(member(0, 4), std::move(place.listening), 20s); });
  });
  std::this_thread::sleep_for(20ms);
  raw.connection.reset();
  // Rank 3 never comes, but nobody waits for it: rank 1 is gone.
  const double seconds = seconds_of([&] {
    EXPECT_TRUE(has(server.get(), "rank 1"));
    EXPECT_TRUE(has(other.get(), "rank 1"));
  });
  EXPECT_LT(seconds, 10);
}

// A server by hand, which welcomes rank 1 of two and then does what the test wants.
struct RawServer {
  RawServer() {
    const UniqueFd listening = listen_at(0, true, Clock::now());
    const int port = port_of(listening);
    auto other = std::async(std::launch::async, [&] {
      const auto where = [&](std::string&) { return Address{"127.0.0.1", port}; };
      return ControlPlane::join(member(1, 2), where, 20s);
    });
    UniqueFd accepted;
    while (!(accepted = accept_from(listening))) std::this_thread::sleep_for(1ms);
    connection.emplace(std::move(accepted));
    connection->send({{"welcome", true}});
    connection->send({{"members", message_of({member(0, 2), member(1, 2)})}});
    plane = other.get();
  }
  std::optional<Connection> connection;
  Plane plane;  // of rank 1
};

TEST(Gone, RankZero) {
  RawServer server;
  ControlPlane& plane = *server.plane;
  auto waiting = std::async(std::launch::async, [&] {
    return message<CommError>([&] { plane.call(request(Request::Op::get, {"k"}), 20s); });
  });
  std::this_thread::sleep_for(50ms);
  server.connection->receive();
  server.connection.reset();
  const double seconds = seconds_of([&] {
    EXPECT_TRUE(has(waiting.get(), "rank 0 is gone: its process has ended without a word"));
    EXPECT_EQ(plane.first_failure(5s)->rank, 0);
  });
  EXPECT_LT(seconds, 5);
  plane.announce_failure("nobody hears this");
  EXPECT_EQ(plane.first_failure(0ms)->rank, 0);
}

// A server that is there and never answers: calls end by their own limits.
TEST(Gone, RankZeroHangs) {
  RawServer server;
  Plane& plane = server.plane;
  EXPECT_LT(seconds_of([&] { EXPECT_FALSE(plane->call(request(Request::Op::get, {"k"}), 300ms)); }),
            5);
  EXPECT_FALSE(plane->rank_0_answers());
  EXPECT_EQ(plane->states()[0], "") << "it does not answer";
  EXPECT_EQ(plane->states()[1], "nothing that it tells");
  plane->announce_failure("a cause");
  // Calls of a group that nobody needs any more do not wait for it at all.
  const auto told = [&] {
    return message<CommError>(
        [&] { plane->call(request(Request::Op::set, {"k"}, {"v"}), 20s, /*unless_failed=*/true); });
  };
  auto waiting = std::async(std::launch::async, told);
  EXPECT_EQ(waiting.wait_for(200ms), std::future_status::timeout) << "rank 0 may still answer";
  plane->give_up();
  EXPECT_LT(seconds_of([&] { EXPECT_TRUE(has(waiting.get(), "given the others up")); }), 5);
  EXPECT_LT(seconds_of([&] { EXPECT_TRUE(has(told(), "given the others up")); }), 5);
  EXPECT_LT(seconds_of([&] { plane.reset(); }), 5);
}

TEST(Addresses, OfConnections) {
  EXPECT_TRUE(is_loopback("127.0.1.1") && is_loopback("localhost") && is_loopback("::1"));
  EXPECT_FALSE(is_loopback("10.0.0.1") || is_loopback("h1"));
  EXPECT_EQ(to_string(Address{"::1", 5}), "[::1]:5");
  EXPECT_EQ(route_to("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(route_to("no such host.invalid"), "");
  EXPECT_FALSE(host_name().empty());
  EXPECT_EQ(boot_id().size(), 36U);  // a UUID
  EXPECT_EQ(host_id(), str(host_name(), "/", boot_id()));
}

// Ranks on rank 0's host come over its loopback device; others must know a better address.
TEST(Addresses, HostsAreToldApart) {
  std::vector<Member> members{member(0, 3), member(1, 3), member(2, 3)};
  members[2].host = "there";
  members[2].host_id = "there/2";
  auto planes = meet(members);
  EXPECT_TRUE(planes[1]->on_several_hosts());
  EXPECT_EQ(planes[1]->name_of(2), "rank 2 on there");
  EXPECT_EQ(planes[0]->name_of(0), "rank 0 on here");
  leave(planes);
}

}  // namespace
}  // namespace floe::control::control_test
