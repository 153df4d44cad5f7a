// Meshes, the store, fake groups and backends.
#include "floe/comm/world.h"

#include <ATen/ATen.h>

#include <thread>

#include "floe/comm/activity.h"
#include "floe/core/error.h"
#include "tests/support/ranks.h"

namespace floe::comm::world_test {
namespace {

using namespace std::chrono_literals;

template <class F>
void expect_config_error(F&& call, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "accepted: " << part;
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    EXPECT_EQ(e.exit(), Exit::usage);
  }
}

std::vector<std::int64_t> ranks_of(Group& group, int world_rank) {
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, at::full({1}, world_rank, at::kLong), "who").wait();
  return {all.const_data_ptr<std::int64_t>(), all.const_data_ptr<std::int64_t>() + all.numel()};
}

TEST_RANKS(Mesh, FourRanksInPairs, 4) {
  auto world = World::join();
  const int r = world->rank();
  const Mesh& mesh = world->mesh(2);
  using Ranks = std::vector<std::int64_t>;
  EXPECT_EQ(mesh.shard_size(), 2);
  EXPECT_EQ(mesh.replicate_size(), 2);
  EXPECT_EQ(mesh.shard->rank(), r % 2);
  EXPECT_EQ(mesh.replicate->rank(), r / 2);
  EXPECT_EQ(ranks_of(*mesh.shard, r), r < 2 ? (Ranks{0, 1}) : (Ranks{2, 3}));
  EXPECT_EQ(ranks_of(*mesh.replicate, r), r % 2 ? (Ranks{1, 3}) : (Ranks{0, 2}));
  EXPECT_EQ(ranks_of(*mesh.world, r), (Ranks{0, 1, 2, 3}));

  at::Tensor sum = at::full({3}, 10.0 * r);
  mesh.shard->all_reduce(sum, Reduce::sum, "in the pair").wait();
  EXPECT_EQ(sum[2].item<double>(), r < 2 ? 10 : 50);
  mesh.replicate->all_reduce(sum, Reduce::average, "across").wait();
  EXPECT_EQ(sum[0].item<double>(), 30);

  EXPECT_EQ(&world->mesh(2), &mesh) << "made once";
}

TEST_RANKS(Mesh, TheEndsAreTheWorldAndAlone, 4) {
  auto world = World::join();
  const Mesh whole = world->mesh(4);
  EXPECT_EQ(whole.shard, world->group());
  EXPECT_EQ(whole.replicate_size(), 1);
  const Mesh alone = world->mesh(1);
  EXPECT_EQ(alone.replicate, world->group());
  EXPECT_EQ(alone.shard_size(), 1);
  at::Tensor same = at::full({2}, world->rank());
  alone.shard->all_reduce(same, Reduce::sum, "alone").wait();
  EXPECT_EQ(same[0].item<int>(), world->rank());

  for (const int size : {3, 0, -1, 5, 8})
    expect_config_error([&] { world->mesh(size); }, "does not divide the world of 4");
  world->group()->barrier("still usable");
}

TEST_RANKS(World, TheBlackboard, 2) {
  auto world = World::join();
  EXPECT_EQ(world->size(), 2);
  EXPECT_EQ(world->local_rank(), world->rank());
  EXPECT_TRUE(world->device().is_cpu());
  EXPECT_EQ(world->backend(), Backend::gloo);
  const int other = 1 - world->rank();
  const std::string odd("line\nand \0 zero", 15);
  world->publish(str("hello/", world->rank()), str("I am ", world->rank(), odd));
  EXPECT_EQ(world->lookup(str("hello/", other), 5s), str("I am ", other, odd));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(world->lookup("never", 100ms));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s);
  EXPECT_FALSE(world->first_failure(1ms));
  world->group()->barrier("all have looked");
}

TEST(World, ASingleProcessNeedsNobody) {
  auto world = World::join({});
  EXPECT_EQ(world->size(), 1);
  at::Tensor x = at::arange(3, at::kFloat);
  world->group()->all_reduce(x, Reduce::average, "alone").wait();
  EXPECT_TRUE(x.equal(at::arange(3, at::kFloat)));
  world->group()->barrier("alone");
  world->announce_failure("a cause");
  EXPECT_EQ(world->first_failure(1ms), "rank 0: a cause");
  world->announce_failure("a later one");
  EXPECT_EQ(world->first_failure(1ms), "rank 0: a cause");
}

TEST(Fake, EveryOtherRankHoldsTheSame) {
  auto world = World::fake(1, 3);
  EXPECT_EQ(world->rank(), 1);
  EXPECT_EQ(world->size(), 3);
  EXPECT_EQ(world->backend(), Backend::fake);
  Group& group = *world->group();

  at::Tensor all = at::zeros({6});
  group.all_gather(all, at::tensor({1.0f, 2.0f}), "g").wait();
  EXPECT_TRUE(all.equal(at::tensor({1.0f, 2.0f, 1.0f, 2.0f, 1.0f, 2.0f})));
  all.narrow(0, 2, 2).fill_(5);
  group.all_gather(all, all.narrow(0, 2, 2), "in place").wait();
  EXPECT_TRUE(all.equal(at::full({6}, 5.0f)));

  const at::Tensor input = at::arange(6, at::kFloat);
  at::Tensor slice = at::zeros({2});
  group.reduce_scatter(slice, input, Reduce::sum, "s").wait();
  EXPECT_TRUE(slice.equal(at::tensor({6.0f, 9.0f})));
  group.reduce_scatter(slice, input, Reduce::average, "s").wait();
  EXPECT_TRUE(slice.equal(at::tensor({2.0f, 3.0f})));

  at::Tensor x = at::tensor({1.0f, 4.0f});
  group.all_reduce(x, Reduce::average, "r").wait();
  EXPECT_TRUE(x.equal(at::tensor({1.0f, 4.0f})));
  group.all_reduce(x, Reduce::sum, "r").wait();
  EXPECT_TRUE(x.equal(at::tensor({3.0f, 12.0f})));
  group.broadcast(x, 2, "b").wait();
  EXPECT_TRUE(x.equal(at::tensor({3.0f, 12.0f})));
  group.barrier("x");

  const Traffic& traffic = group.traffic();
  EXPECT_EQ(traffic.all_gathers, 2);
  EXPECT_EQ(traffic.all_gather_bytes, 48);
  EXPECT_EQ(traffic.reduce_scatters, 2);
  EXPECT_EQ(traffic.reduce_scatter_bytes, 48);
  EXPECT_EQ(traffic.all_reduces, 2);
  EXPECT_EQ(traffic.all_reduce_bytes, 16);
  EXPECT_EQ(traffic.broadcasts, 1);
  EXPECT_EQ(traffic.broadcast_bytes, 8);
  EXPECT_THROW(group.all_gather(at::zeros({5}), at::zeros({2}), "g"), CommError);
}

TEST(Fake, MeshesAndLimits) {
  auto world = World::fake(6, 8);
  const Mesh& mesh = world->mesh(4);
  EXPECT_EQ(mesh.shard->rank(), 2);
  EXPECT_EQ(mesh.shard_size(), 4);
  EXPECT_EQ(mesh.replicate->rank(), 1);
  EXPECT_EQ(mesh.replicate_size(), 2);
  EXPECT_NO_THROW(World::fake(0, 1));
  expect_config_error([] { World::fake(3, 3); }, "rank 3 does not fit a world of 3");
  expect_config_error([] { World::fake(-1, 3); }, "does not fit");
  expect_config_error([] { World::fake(0, 0); }, "does not fit");
}

// ---- whether all ranks mean the same ----

std::vector<NamedText> settings(const std::string& lr) {
  return {{"steps", "5"}, {"lr", lr}, {"odd \xff bytes", "same"}};
}

TEST_RANKS(Same, TheFirstDifferenceIsNamedOnEveryRank, 3) {
  auto world = World::join();
  world->require_same("their settings", settings("0.1"), "start all alike");
  // Ranks without values have no say.
  world->require_same("their files", world->rank() == 1 ? std::vector<NamedText>() : settings("1"),
                      "copy them");
  try {
    world->require_same("their settings", settings(world->rank() == 2 ? "0.2" : "0.1"),
                        "start all alike");
    ADD_FAILURE() << "rank 2 has another lr";
  } catch (const ConfigError& e) {
    EXPECT_STREQ(
        e.what(),
        "the ranks differ in their settings: 'lr' is 0.1 on rank 0 and 0.2 on rank 2; start "
        "all alike");
  }
  try {
    auto values = settings("0.1");
    if (world->rank() == 1) values.push_back({"more", "x"});
    world->require_same("their settings", values, "start all alike");
    ADD_FAILURE() << "rank 1 has one more";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("'more' is not set on rank 0 and x on rank 1"),
              std::string::npos)
        << e.what();
  }
  world->require_same("their settings", settings("0.1"), "start all alike");
}

TEST_RANKS(Placement, OneHost, 2) {
  auto world = World::join();
  EXPECT_FALSE(world->on_several_hosts());
  EXPECT_EQ(world->is_first_on_host(), world->rank() == 0);
  EXPECT_EQ(world->ranks_on_host(), world->size());
  EXPECT_EQ(world->ranks_on_device(), world->size());  // all are on the CPU
  ASSERT_EQ(world->placement().size(), 2u);
  EXPECT_EQ(world->placement()[1].find("rank 1: "), 0u) << world->placement()[1];
  EXPECT_TRUE(world->placement()[1].ends_with(" cpu")) << world->placement()[1];
}

// ---- what ranks are doing ----

TEST_RANKS(States, AreAskedForWhileTheyWait, 3) {
  auto world = World::join();
  Activity::of_this_rank().begin("reads data");
  world->group()->barrier("warm");
  if (world->rank() == 2) {
    const auto until = std::chrono::steady_clock::now() + 20s;
    std::string said;
    while (said.find("ranks") == std::string::npos && std::chrono::steady_clock::now() < until) {
      const auto states = world->states();
      said = sentence_of_states(states, [](int rank) { return str("rank ", rank); });
      if (said.find("rank 0, rank 1: waits in barrier 'late' of world") != std::string::npos) break;
      std::this_thread::sleep_for(20ms);
    }
    // The one that does something else stands in front.
    EXPECT_EQ(said.find("rank 2: reads data (its last collective: barrier 'warm' of world)"), 0u)
        << said;
    EXPECT_NE(said.find("; rank 0, rank 1: waits in barrier 'late' of world"), std::string::npos)
        << said;
  }
  world->group()->barrier("late");
}

TEST_RANKS(Activity, WaitsForParametersAndForSumsAreCountedApart, 2) {
  auto world = World::join();
  const auto late = [&](int rank) {
    if (world->rank() == rank) std::this_thread::sleep_for(500ms);
  };
  const auto waited = [] { return Activity::of_this_rank().waited(); };
  const at::Tensor whole = at::zeros({2}), part = at::zeros({1});
  const auto before = waited();
  late(1);
  world->group()->all_gather(whole, part, "parameters").wait();
  const auto gathered = waited();
  EXPECT_EQ(gathered.reduce_s, before.reduce_s);
  if (world->rank() == 0) {
    EXPECT_GT(gathered.gather_s - before.gather_s, 0.3);
  }
  late(0);
  world->group()->reduce_scatter(part, whole, Reduce::sum, "gradients").wait();
  const auto reduced = waited();
  EXPECT_EQ(reduced.gather_s, gathered.gather_s);
  if (world->rank() == 1) {
    EXPECT_GT(reduced.reduce_s - gathered.reduce_s, 0.3);
  }
  world->group()->all_reduce(part, Reduce::sum, "agreement").wait();
  world->group()->barrier("neither");
  const auto after = waited();
  EXPECT_EQ(after.gather_s, gathered.gather_s);
  EXPECT_GT(after.reduce_s, reduced.reduce_s);
  EXPECT_GT(after.all_s, after.gather_s + after.reduce_s);
}

TEST(States, ARankThatDoesNotAnswerIsSaid) {
  const auto name = [](int rank) { return str("rank ", rank, " on h", rank); };
  EXPECT_EQ(
      sentence_of_states({"waits in x\t61", "", "waits in x\t60"}, name),
      "rank 1 on h1: does not answer: it is stopped, or its host hangs; rank 0 on h0, rank 2 on "
      "h2: waits in x, since 61 s");
  const std::vector<std::string> many(20, "reads data\t0");
  const std::string text = sentence_of_states(many, name);
  EXPECT_NE(text.find("rank 7 on h7 and 12 more: reads data"), std::string::npos) << text;
}

TEST(Backends, ThoseThatCannotBeAreRefused) {
  WorldOptions options;
  options.backend = Backend::fake;
  expect_config_error([&] { World::join(options); }, "World::fake");
  if (!at::Context::hasCUDA()) {
    options.backend = Backend::nccl;
    expect_config_error([&] { World::join(options); }, "nccl' needs a GPU");
    options.backend = Backend::gloo;
    options.device = c10::Device(c10::kCUDA);
    expect_config_error([&] { World::join(options); }, "set dist.device to cpu");
  }
}

TEST(Backends, Names) {
  EXPECT_EQ(backend_from_name("auto"), Backend::automatic);
  EXPECT_EQ(backend_from_name("gloo"), Backend::gloo);
  EXPECT_EQ(backend_from_name("nccl"), Backend::nccl);
  for (const std::string name : {"", "Gloo", "ucc", "mpi", "fake"})
    expect_config_error([&] { backend_from_name(name); }, "not one of auto, gloo, nccl");
}

}  // namespace
}  // namespace floe::comm::world_test
