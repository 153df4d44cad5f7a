// NCCL between real ranks: values, the host that goes on, ranks that die, are late or give up.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "tests/support/ranks.h"

namespace floe::comm::nccl_test {
namespace {

using namespace std::chrono_literals;

at::TensorOptions on_gpu(at::ScalarType dtype) { return at::device(test::device()).dtype(dtype); }

std::shared_ptr<World> join(std::chrono::seconds timeout = 60s) {
  return test::join_world({.timeout = timeout, .over_nccl = true});
}

void collectives_give_the_right_values() {
  const auto world = join();
  const GroupPtr& group = world->group();
  const int rank = world->rank(), size = world->size();
  ASSERT_EQ(world->backend(), Backend::nccl);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor mine = at::full({5}, rank + 1, on_gpu(dtype));
    at::Tensor all = at::zeros({5 * size}, on_gpu(dtype));
    group->all_gather(all, mine, "all").wait();
    for (int peer = 0; peer < size; ++peer)
      EXPECT_TRUE(all.narrow(0, 5 * peer, 5).eq(peer + 1).all().item<bool>());

    // In place: the input is this rank's slice of the output.
    at::Tensor own = all.zero_().narrow(0, 5 * rank, 5);
    own.fill_(rank + 1);
    group->all_gather(all, own, "all in place").wait();
    for (int peer = 0; peer < size; ++peer)
      EXPECT_TRUE(all.narrow(0, 5 * peer, 5).eq(peer + 1).all().item<bool>());

    at::Tensor slice = at::zeros({3}, on_gpu(dtype));
    const at::Tensor terms = at::arange(3 * size, on_gpu(dtype));
    group->reduce_scatter(slice, terms, Reduce::sum, "sum").wait();
    EXPECT_TRUE(slice.equal(terms.narrow(0, 3 * rank, 3) * size));
    group->reduce_scatter(slice, terms, Reduce::average, "mean").wait();
    EXPECT_TRUE(slice.allclose(terms.narrow(0, 3 * rank, 3), 1e-2));

    at::Tensor shared = mine.clone();
    group->all_reduce(shared, Reduce::sum, "shared").wait();
    EXPECT_TRUE(shared.eq(size * (size + 1) / 2).all().item<bool>());
    at::Tensor told = mine.clone();
    group->broadcast(told, size - 1, "told").wait();
    EXPECT_TRUE(told.eq(size).all().item<bool>());
  }
  group->barrier("end");
}
TEST_RANKS(Nccl, ValuesOnTwoRanks, 2) { collectives_give_the_right_values(); }
TEST_RANKS(Nccl, ValuesOnFourRanks, 4) { collectives_give_the_right_values(); }

TEST_RANKS(Nccl, GroupsOfAMesh, 4) {
  const auto world = join();
  const Mesh& mesh = world->mesh(2);
  const at::Tensor mine = at::full({1}, world->rank(), on_gpu(at::kFloat));
  at::Tensor pair = at::zeros({2}, on_gpu(at::kFloat));
  mesh.shard->all_gather(pair, mine, "pair").wait();
  const int first = world->rank() / 2 * 2;
  EXPECT_TRUE(pair.cpu().equal(at::tensor({float(first), float(first + 1)})));
  at::Tensor sum = mine.clone();
  mesh.replicate->all_reduce(sum, Reduce::sum, "column").wait();
  EXPECT_EQ(sum.item<float>(), 2 * (world->rank() % 2) + 2);
}

// What a rank reads and says when `peer` does something to the others, and how long it took.
struct Outcome {
  std::string said;
  double seconds = 0;
};
Outcome one_more_sum(World& world) {
  const auto begin = std::chrono::steady_clock::now();
  Outcome outcome{.said = "nothing"};
  try {
    at::Tensor sum = at::ones({4}, on_gpu(at::kFloat));
    world.group()->all_reduce(sum, Reduce::sum, "one more").wait();
    world.read(sum);
  } catch (const CommError& e) {
    outcome.said = e.what();
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

// A rank that dies: the others fail with a sentence, long before any timeout.
TEST(Nccl, ARankThatDies) {
  if (test::is_rank()) {
    const auto world = join(60s);
    EXPECT_EQ(one_more_sum(*world).said, "nothing");
    if (world->rank() == 1) raise(SIGKILL);
    const Outcome outcome = one_more_sum(*world);
    // The control plane notices it, as a rule before NCCL does, also where no connection of NCCL's
    // closes. Whoever is first, what the log says names the rank.
    const bool told = outcome.said.find("was given up on rank 0: rank 1 has failed") !=
                      std::string::npos,
               seen = outcome.said.find("failed on rank 0 of 2") != std::string::npos;
    EXPECT_TRUE(told || seen) << outcome.said;
    EXPECT_LT(outcome.seconds, 10);
    world->fail(std::make_exception_ptr(CommError(outcome.said)));
    EXPECT_NE(world->failure().find("rank 1"), std::string::npos) << world->failure();
    return;
  }
  const auto outcome = test::start_ranks("Nccl", "ARankThatDies", 2, 120s);
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{0, 128 + SIGKILL})) << outcome.outputs[0];
}

// A rank that does not come: the other one fails at the timeout and goes on; nothing
// ends the process.
TEST_RANKS(Nccl, ARankThatIsLate, 2) {
  const auto world = join(10s);
  EXPECT_EQ(one_more_sum(*world).said, "nothing");
  if (world->rank() == 1) {
    std::this_thread::sleep_for(25s);
    return;
  }
  const Outcome outcome = one_more_sum(*world);
  EXPECT_NE(outcome.said.find("timed out"), std::string::npos) << outcome.said;
  EXPECT_GT(outcome.seconds, 5);
  EXPECT_LT(outcome.seconds, 20);
  EXPECT_EQ(at::ones({3}, on_gpu(at::kFloat)).sum().item<float>(), 3) << "the device still works";
}

TEST_RANKS(Nccl, ARankThatGivesUp, 2) {
  const auto world = join();
  EXPECT_EQ(one_more_sum(*world).said, "nothing");
  if (world->rank() == 1) world->abort();
  const Outcome outcome = one_more_sum(*world);
  EXPECT_NE(outcome.said.find(world->rank() == 1 ? "was given up" : "failed on rank 0 of 2"),
            std::string::npos)
      << outcome.said;
  EXPECT_LT(outcome.seconds, 30) << "the other one is told, too";
}

// A rank that has announced its failure but goes on: the other one does not wait for its timeout,
// in any group.
TEST_RANKS(Nccl, AFailureThatIsTold, 2) {
  const auto world = join();
  const Mesh& mesh = world->mesh(2);
  EXPECT_EQ(one_more_sum(*world).said, "nothing");
  if (world->rank() == 1) {
    world->announce_failure("no more pictures");
    std::this_thread::sleep_for(20s);
    return;
  }
  at::Tensor whole = at::zeros({8}, on_gpu(at::kFloat));
  mesh.shard->all_gather(whole, at::ones({4}, on_gpu(at::kFloat)), "stuck").wait();
  const Outcome outcome = one_more_sum(*world);
  EXPECT_NE(outcome.said, "nothing");
  EXPECT_LT(outcome.seconds, 15);
}

// The host waits in a barrier, not only its stream.
TEST_RANKS(Nccl, ABarrierHoldsTheHost, 2) {
  const auto world = join();
  if (world->rank() == 1) {
    std::this_thread::sleep_for(1s);
    world->publish("late", "yes");
  }
  world->group()->barrier("both");
  EXPECT_EQ(world->lookup("late", 0ms), "yes");
  world->group()->barrier("read");  // rank 0 holds the store
}

// Nobody waits for ever for a rank that never comes.
TEST(Nccl, ARankThatNeverComes) {
  if (test::is_rank()) {
    if (std::getenv("RANK") == std::string("1")) return;
    try {
      join(3s);
      ADD_FAILURE() << "a world of two ranks with one";
    } catch (const CommError& e) {
      EXPECT_NE(std::string(e.what()).find("rank 1 (rank 0 is here) did not come within 3 s"),
                std::string::npos)
          << e.what();
    }
    return;
  }
  const auto outcome = test::start_ranks("Nccl", "ARankThatNeverComes", 2, 60s);
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{0, 0})) << outcome.outputs[0];
}

// Two ranks on one GPU of one machine: NCCL's own sentence, in one line.
TEST(Nccl, RanksThatMayNotShareAGpu) {
  if (test::is_rank()) {
    try {
      World::join({.backend = Backend::nccl,
                   .device = test::device(),
                   .timeout = 60s,
                   .rendezvous = find_rendezvous({}, process_environment())});
      ADD_FAILURE() << "NCCL let two ranks share a GPU";
    } catch (const CommError& e) {
      const std::string said = e.what();
      EXPECT_NE(said.find("Duplicate GPU"), std::string::npos) << said;
      EXPECT_EQ(said.find('\n'), std::string::npos) << said;
    }
    return;
  }
  const auto outcome = test::start_ranks("Nccl", "RanksThatMayNotShareAGpu", 2, 120s);
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{0, 0})) << outcome.outputs[0];
}

}  // namespace
}  // namespace floe::comm::nccl_test
