// One rank fails, dies, goes another way or has less to do than the others: nobody hangs, everybody
// knows, and what goes on goes on with the right numbers.
#include <ATen/ATen.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

namespace floe::failure_test {
namespace {

using namespace std::chrono_literals;
using shard::Strategy;

std::shared_ptr<comm::World> join_with(std::chrono::milliseconds timeout) {
  comm::WorldOptions options;
  options.timeout = timeout;
  options.rendezvous = comm::find_rendezvous({}, comm::process_environment());
  return comm::World::join(options);
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// ---- a model that can be made to fail ----

struct Block : nn::Module {
  explicit Block(std::int64_t width) {
    inner = child<nn::Linear>("inner", 16, width);
    outer = child<nn::Linear>("outer", width, 16);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (in_forward) in_forward();
    const at::Tensor y = x + outer(at::tanh(inner(x)));
    if (in_backward && y.requires_grad())
      y.register_hook([f = in_backward](const at::Tensor&) { f(); });
    return y;
  }
  nn::Ptr<nn::Linear> inner, outer;
  std::function<void()> in_forward, in_backward;
};

struct Chain : nn::Module {
  explicit Chain(const std::vector<std::int64_t>& widths) {
    blocks = child<nn::List<Block>>("blocks");
    for (const auto width : widths) blocks->add(width);
    for (std::size_t i = 0; i < widths.size(); ++i) order.push_back(i);
  }
  at::Tensor forward(at::Tensor x) {
    for (const std::size_t i : order) x = (*blocks)[i](x);
    return x.square().mean();
  }
  nn::Ptr<nn::List<Block>> blocks;
  std::vector<std::size_t> order;
};

struct Job {
  Job(std::shared_ptr<comm::World> joined, const std::vector<std::int64_t>& widths,
      int prefetch = 1)
      : world(std::move(joined)) {
    model = std::make_shared<Chain>(widths);
    shard::ShardOptions options;
    options.world = world;
    options.prefetch = prefetch;
    engine = shard::fully_shard(model, {.units = {"Block"}}, options);
    optimizer = std::make_unique<optim::AdamW>(*engine, optim::AdamWOptions{});
  }
  void forward_backward() { nn::call(*model, at::ones({4, 16})).backward(); }
  void step() {
    forward_backward();
    engine->agree();
    optimizer->step(1e-3);
    engine->clear_gradients();
  }

  std::shared_ptr<comm::World> world;
  std::shared_ptr<Chain> model;
  std::shared_ptr<shard::Engine> engine;
  std::unique_ptr<optim::AdamW> optimizer;
};

// ---- a rank that throws ----

// Runs the body on three ranks. Rank 1 must end with `cause`, the others because their connection
// to it broke, all with exit code 1 and long before any timeout.
void expect_rank_1_ends_all(const std::string& name, const std::string& cause,
                            const std::function<void(Job&)>& body) {
  if (test::is_rank()) {
    Job job(join_with(300s), {16, 32, 24, 16});
    job.step();
    job.step();
    body(job);
    return;
  }
  const auto outcome = test::start_ranks("Failure", name, 3, 60s);
  EXPECT_LT(outcome.seconds, 30);
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{1, 1, 1}));
  EXPECT_TRUE(has(outcome.outputs[1], cause)) << outcome.outputs[1];
  for (const std::size_t other : {0, 2}) {
    EXPECT_TRUE(has(outcome.outputs[other], str("on rank ", other, " of 3 (group world) failed")))
        << outcome.outputs[other];
    EXPECT_FALSE(has(outcome.outputs[other], cause));
  }
}

[[noreturn]] void fail() { throw Error("the cable was pulled"); }

TEST(Failure, ThrowsInForward) {
  expect_rank_1_ends_all("ThrowsInForward", "the cable was pulled", [](Job& job) {
    if (job.world->rank() == 1) (*job.model->blocks)[2]->in_forward = fail;
    for (int i = 0; i < 5; ++i) job.step();
  });
}

TEST(Failure, ThrowsInBackward) {
  expect_rank_1_ends_all("ThrowsInBackward", "the cable was pulled", [](Job& job) {
    if (job.world->rank() == 1) (*job.model->blocks)[1]->in_backward = fail;
    for (int i = 0; i < 5; ++i) job.step();
  });
}

TEST(Failure, ThrowsBeforeACollective) {
  expect_rank_1_ends_all("ThrowsBeforeACollective", "the cable was pulled", [](Job& job) {
    job.forward_backward();
    if (job.world->rank() == 1) fail();
    job.engine->agree();
  });
}

// Torch's own errors count as well.
TEST(Failure, AnOperatorFails) {
  expect_rank_1_ends_all("AnOperatorFails", "size of tensor", [](Job& job) {
    if (job.world->rank() == 1)
      (*job.model->blocks)[2]->in_forward = [] { at::ones({2}) + at::ones({3}); };
    job.step();
  });
}

// ---- a rank that dies ----

void expect_death_of_rank_2_ends_all(const std::string& name,
                                     const std::function<void(Job&)>& prepare) {
  if (test::is_rank()) {
    Job job(join_with(300s), {16, 32, 24, 16});
    for (int i = 0; i < 3; ++i) job.step();
    if (job.world->rank() == 2) prepare(job);
    for (int i = 0; i < 3; ++i) job.step();
    return;
  }
  const auto outcome = test::start_ranks("Failure", name, 3, 60s);
  EXPECT_LT(outcome.seconds, 30);
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{1, 1, 128 + SIGKILL}));
  for (const std::size_t other : {0, 1})
    EXPECT_TRUE(has(outcome.outputs[other], str("on rank ", other, " of 3 (group world) failed")))
        << outcome.outputs[other];
}

TEST(Failure, KilledInForward) {
  expect_death_of_rank_2_ends_all("KilledInForward", [](Job& job) {
    (*job.model->blocks)[2]->in_forward = [] { raise(SIGKILL); };
  });
}

TEST(Failure, KilledInBackward) {
  expect_death_of_rank_2_ends_all("KilledInBackward", [](Job& job) {
    (*job.model->blocks)[1]->in_backward = [] { raise(SIGKILL); };
  });
}

// ---- a gradient that is not a number, on one rank ----

test::Recipe small_recipe() {
  test::Recipe recipe;
  recipe.size = {.vocab = 31, .dim = 16, .layers = 3, .heads = 2, .context = 8};
  return recipe;
}

struct Trained {
  Trained(std::shared_ptr<comm::World> joined, const test::Recipe& recipe,
          shard::ShardOptions options = {}, std::vector<std::string> units = {"DecoderLayer"})
      : world(std::move(joined)), recipe(recipe), reference(recipe, world->size()) {
    model = std::make_shared<models::Transformer>(recipe.size);
    options.world = world;
    options.trainable = recipe.trainable;
    options.seed = recipe.seed;
    engine =
        shard::fully_shard(model, {.units = std::move(units), .lone_unit_numel = 200}, options);
    optimizer = std::make_unique<optim::AdamW>(*engine, recipe.adamw);
  }
  at::Tensor loss(int step) {
    const at::Tensor ids = test::batch_of(recipe, step, 0, world->rank());
    return models::next_token_loss(nn::call(*model, ids), ids);
  }
  // One update like the reference's.
  void step(int number) {
    const auto expected = reference.step();
    const at::Tensor value = loss(number);
    value.backward();
    EXPECT_NEAR(value.item<double>(), expected.losses[static_cast<std::size_t>(world->rank())],
                1e-5)
        << "step " << number;
    const auto agreement = engine->agree();
    EXPECT_TRUE(agreement.finite);
    EXPECT_NEAR(agreement.gradient_norm, expected.gradient_norm, 1e-4 * expected.gradient_norm);
    optimizer->step(recipe.lr);
    engine->clear_gradients();
  }
  void expect_the_references_weights() {
    for (const auto& [name, weight] : reference.weights()) {
      if (name.ends_with("qkv.bias")) continue;  // moved by rounding noise alone
      EXPECT_LE((engine->full_parameter(name) - weight).abs().max().item<double>(), 1e-5) << name;
    }
  }

  std::shared_ptr<comm::World> world;
  test::Recipe recipe;
  test::ReferenceTrainer reference;
  std::shared_ptr<models::Transformer> model;
  std::shared_ptr<shard::Engine> engine;
  std::unique_ptr<optim::AdamW> optimizer;
};

TEST_RANKS(Failure, NanOnOneRankIsSkippedByAll, 3) {
  Trained trained(join_with(60s), small_recipe());
  for (int step = 0; step < 4; ++step) {
    if (step >= 1) {
      const double factor = trained.world->rank() != step % 3 ? 1 : step == 2 ? INFINITY : NAN;
      (trained.loss(step) * factor).backward();
      const std::vector<double> mine{1.0, 10.0 * trained.world->rank()};
      const auto agreement = trained.engine->agree(true, mine);
      EXPECT_FALSE(agreement.finite);
      EXPECT_TRUE(std::isnan(agreement.gradient_norm));
      EXPECT_EQ(agreement.sums, (std::vector<double>{3, 30}))
          << "what else was asked is still true";
      trained.engine->clear_gradients();
    }
    trained.step(step);
  }
  trained.expect_the_references_weights();
}

// The gradients are fine, but a rank says of its loss that it is not.
TEST_RANKS(Failure, ALossThatIsNotFiniteOnOneRank, 2) {
  Trained trained(join_with(60s), small_recipe());
  trained.loss(0).backward();
  EXPECT_FALSE(trained.engine->agree(trained.world->rank() != 1).finite);
  EXPECT_TRUE(trained.engine->agree(true).finite);
}

// Numbers that the host has not read: summed behind those that it has, and looked at on the way.
TEST_RANKS(Failure, NumbersOnTheDeviceAreAgreedOnToo, 2) {
  Trained trained(join_with(60s), small_recipe());
  trained.loss(0).backward();
  const int rank = trained.world->rank();
  const std::vector<double> known{1, 2.0 * rank};
  at::Tensor losses = at::tensor({3.0 + rank, 0.25}).to(trained.world->device());
  const auto plain = trained.engine->agree(true, known);
  auto all = trained.engine->agree(true, known, losses);
  EXPECT_TRUE(all.finite && all.locally_finite);
  EXPECT_EQ(all.sums, (std::vector<double>{2, 2, 7, 0.5}));
  EXPECT_EQ(all.gradient_norm, plain.gradient_norm);
  if (rank == 1) losses[0] = NAN;
  all = trained.engine->agree(true, known, losses);
  EXPECT_FALSE(all.finite);
  EXPECT_EQ(all.locally_finite, rank == 0);
  EXPECT_EQ(all.sums, (std::vector<double>{2, 2, 3, 0.5}));
}

// Its gradients reach everybody; still the ranks know which of them it was.
TEST_RANKS(Failure, TheRankWhoseLossIsNotFiniteIsKnown, 3) {
  Trained trained(join_with(60s), small_recipe());
  const int rank = trained.world->rank();
  const at::Tensor loss = trained.loss(0) * (rank == 1 ? NAN : 1.0);
  loss.backward();
  const auto all = trained.engine->agree(true, {}, loss);
  EXPECT_FALSE(all.finite);
  EXPECT_EQ(all.locally_finite, rank != 1);
}

// ---- ranks that go different ways ----

// Two units of equal size in another order: every collective fits, and every weight is wrong.
void another_order(const std::vector<std::int64_t>& widths, int prefetch) {
  Job job(join_with(60s), widths, prefetch);
  job.step();
  job.step();
  std::vector<at::Tensor> before;
  for (const auto* group : job.engine->trainable_groups()) before.push_back(group->slice().clone());
  if (job.world->rank() == 1) job.model->order = {0, 2, 1, 3};
  job.forward_backward();
  try {
    job.engine->agree();
    ADD_FAILURE() << "nobody noticed";
  } catch (const ShardError& e) {
    const std::string text = e.what();
    EXPECT_TRUE(has(text, "different ways")) << text;
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_TRUE(has(text, str("rank ", rank, " issued ... "))) << text;
    EXPECT_TRUE(has(text, "gather blocks.1 trainable")) << text;
  }
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(job.engine->trainable_groups()[i]->slice().equal(before[i])) << "updated";
}

TEST_RANKS(Failure, AnotherOrderIsNoticedByAll, 3) { another_order({16, 16, 16, 16}, 1); }
TEST_RANKS(Failure, AnotherOrderIsNoticedByAllWithoutPrefetch, 3) {
  another_order({16, 24, 24, 32}, 0);
}

// A unit that one rank leaves out: its collectives meet others of the same or of another size, or
// nobody. However that ends, it ends for all and says that something is wrong.
void expect_skip_ends_all(const std::string& name, const std::vector<std::int64_t>& widths,
                          int prefetch) {
  if (test::is_rank()) {
    Job job(join_with(4s), widths, prefetch);
    job.step();
    job.step();
    if (job.world->rank() == 1) job.model->order = {0, 1, 3};
    for (int i = 0; i < 3; ++i) job.step();
    return;
  }
  const auto outcome = test::start_ranks("Failure", name, 3, 60s);
  EXPECT_LT(outcome.seconds, 30);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(outcome.exit_codes[rank], 1) << outcome.outputs[rank];
    EXPECT_TRUE(has(outcome.outputs[rank], "(group world) failed") ||
                has(outcome.outputs[rank], "different ways"))
        << outcome.outputs[rank];
  }
}

TEST(Failure, SkipOfAUnit) { expect_skip_ends_all("SkipOfAUnit", {16, 40, 24, 32}, 1); }
TEST(Failure, SkipOfASmallUnit) { expect_skip_ends_all("SkipOfASmallUnit", {16, 40, 8, 32}, 0); }
TEST(Failure, SkipOfAUnitOfEqualSize) {
  expect_skip_ends_all("SkipOfAUnitOfEqualSize", {16, 16, 16, 16}, 1);
}

// ---- ranks that were not started alike ----

struct Difference {
  std::string name;
  std::vector<std::string> says;
  std::function<void(test::Recipe&, shard::ShardOptions&, shard::Policy&)> on_rank_1;
};

const std::vector<Difference>& differences() {
  using R = test::Recipe;
  using O = shard::ShardOptions;
  using P = shard::Policy;
  static const std::vector<Difference> all{
      {"layers", {"layers.2"}, [](R& r, O&, P&) { r.size.layers = 2; }},
      {"width",
       {"'embed trainable'", " 496 elements", " 992 elements"},
       [](R& r, O&, P&) { r.size.dim = 32; }},
      {"trainable", {"trainable", "frozen"}, [](R&, O& o, P&) { o.trainable = {"layers.*"}; }},
      {"units",
       {"'layers.0 trainable'"},
       [](R&, O&, P& p) {
         p.units = {"DecoderLayer", "Attention"};
       }},
      {"strategy",
       {"full_shard", "shard_grad_op"},
       [](R&, O& o, P&) { o.strategy = Strategy::shard_grad_op; }},
      {"dtype", {"BFloat16"}, [](R&, O& o, P&) { o.mixed_precision.param = at::kBFloat16; }},
      {"prefetch", {"prefetch"}, [](R&, O& o, P&) { o.prefetch = 0; }},
      {"checkpointing",
       {"layers.0"},
       [](R&, O& o, P&) { o.activation_checkpointing = {"DecoderLayer"}; }},
      {"seed", {"seed"}, [](R&, O& o, P&) { o.seed = 8; }},
  };
  return all;
}

// One world per difference; which one is in the environment.
TEST(Failure, RanksThatDifferFailWithTheFirstDifference) {
  constexpr const char* kCase = "FLOE_TEST_DIFFERENCE";
  if (!test::is_rank()) {
    for (std::size_t i = 0; i < differences().size(); ++i) {
      setenv(kCase, std::to_string(i).c_str(), 1);
      const auto outcome =
          test::start_ranks("Failure", "RanksThatDifferFailWithTheFirstDifference", 3, 30s);
      for (std::size_t rank = 0; rank < 3; ++rank)
        EXPECT_EQ(outcome.exit_codes[rank], 0)
            << differences()[i].name << ", rank " << rank << " said:\n"
            << outcome.outputs[rank];
    }
    return;
  }
  const auto& difference = differences()[std::stoul(std::getenv(kCase))];
  auto world = join_with(20s);
  test::Recipe recipe = small_recipe();
  shard::ShardOptions options;
  options.world = world;
  shard::Policy policy{.units = {"DecoderLayer"}, .lone_unit_numel = 200};
  if (world->rank() == 1) difference.on_rank_1(recipe, options, policy);
  try {
    shard::fully_shard(std::make_shared<models::Transformer>(recipe.size), policy, options);
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& e) {
    const std::string text = e.what();
    EXPECT_TRUE(has(text, "the ranks do not have the same plan")) << text;
    // Every rank compares itself with another one that differs.
    const int mine = world->rank(), other = mine == 1 ? 0 : 1;
    EXPECT_TRUE(has(text, str("rank ", mine, " has ")) && has(text, str("rank ", other, " has ")))
        << text;
    for (const auto& part : difference.says) EXPECT_TRUE(has(text, part)) << text;
  }
}

// ---- ranks with unequal work ----

struct Validation {
  std::string name;
  int prefetch = 1;
  int steps_before = 0;
  bool tied = false;
  Strategy strategy = Strategy::full_shard;
  std::vector<std::string> units{"DecoderLayer"};
};

void check_validation(const std::shared_ptr<comm::World>& world, const Validation& v) {
  SCOPED_TRACE(v.name);
  test::Recipe recipe = small_recipe();
  recipe.size.tied = v.tied;
  shard::ShardOptions options;
  options.prefetch = v.prefetch;
  options.strategy = v.strategy;
  Trained trained(world, recipe, options, v.units);
  for (int step = 0; step < v.steps_before; ++step) trained.step(step);

  // The same weights in one piece.
  models::Transformer whole(recipe.size);
  nn::materialize(whole, recipe.seed);
  const auto parameters = nn::named_parameters(whole);
  const at::AutoGradMode grad_off(false);
  for (const auto& p : parameters) {
    at::Tensor tensor = p.tensor;
    tensor.copy_(trained.engine->full_parameter(p.name));
  }

  for (int round = 0; round < 2; ++round) {
    const int mine = std::array{3, 1, 0}[static_cast<std::size_t>((world->rank() + round) % 3)];
    int done = 0, turns = 0;
    while (trained.engine->any_rank_has(done < mine)) {
      turns += 1;
      if (done == mine) {
        trained.engine->empty_forward();
        continue;
      }
      const at::Tensor ids = test::batch_of(recipe, 100 + round, done++, world->rank());
      EXPECT_TRUE(nn::call(*trained.model, ids).equal(whole.forward(ids))) << "batch " << done;
    }
    EXPECT_EQ(turns, 3);
    EXPECT_EQ(done, mine);
    if (v.strategy == Strategy::full_shard) {
      EXPECT_EQ(trained.engine->memory().pool_used, 0);
    }
  }
  const at::AutoGradMode grad_on(true);
  for (int step = v.steps_before; step < v.steps_before + 2; ++step) trained.step(step);
  trained.expect_the_references_weights();
}

TEST_RANKS(Failure, ValidationWithThreeOneAndNoBatches, 3) {
  auto world = join_with(30s);
  for (const Validation& v : std::vector<Validation>{
           {"first thing"},
           {"first thing, without prefetch", 0},
           {"first thing, prefetch 3", 3},
           {"after training", 1, 2},
           {"after training, without prefetch", 0, 2},
           {"tied", 1, 0, true},
           {"tied, after training", 1, 2, true},
           {"shard_grad_op", 1, 1, false, Strategy::shard_grad_op},
           {"no_shard", 1, 0, false, Strategy::no_shard},
           {"nested units",
            2,
            0,
            false,
            Strategy::full_shard,
            {"DecoderLayer", "Attention", "Linear"}},
       })
    check_validation(world, v);
}

// ---- a forward without a backward ----

void check_discarded(const std::shared_ptr<comm::World>& world, Strategy strategy, int prefetch) {
  SCOPED_TRACE(str(shard::name_of(strategy), ", prefetch ", prefetch));
  shard::ShardOptions options;
  options.strategy = strategy;
  options.prefetch = prefetch;
  Trained trained(world, small_recipe(), options);
  std::int64_t ahead = 0;  // what may have been gathered for the backward that does not come
  for (const auto& group : trained.engine->plan().groups)
    ahead = std::max(ahead, group.gathered_bytes());
  trained.step(0);
  for (int step = 1; step < 4; ++step) {
    {
      const at::Tensor loss = trained.loss(50 + step);
      if (step == 1) {
        EXPECT_GT(trained.engine->memory().pool_used, 0) << "something waits for backward";
      }
    }
    EXPECT_LE(trained.engine->memory().pool_used, prefetch * ahead) << "step " << step;
    trained.step(step);
    EXPECT_EQ(trained.engine->memory().pool_used, 0) << "step " << step;
  }
  trained.expect_the_references_weights();
}

TEST_RANKS(Failure, ADiscardedGraphReleasesWhatItKept, 2) {
  auto world = join_with(30s);
  check_discarded(world, Strategy::full_shard, 0);
  check_discarded(world, Strategy::full_shard, 1);
  check_discarded(world, Strategy::shard_grad_op, 0);
  check_discarded(world, Strategy::shard_grad_op, 1);
}

// ---- twice ----

TEST_RANKS(Failure, AModelIsShardedOnce, 2) {
  Trained trained(join_with(30s), small_recipe());
  trained.step(0);
  shard::ShardOptions options;
  options.world = trained.world;
  try {
    shard::fully_shard(trained.model, {.units = {"DecoderLayer"}}, options);
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_TRUE(has(e.what(), "sharded already")) << e.what();
  }
  // The first engine has noticed nothing.
  trained.step(1);
  trained.step(2);
  trained.expect_the_references_weights();
}

// ---- the frame around a rank ----

TEST(Failure, GuardedRanksTellTheFirstCause) {
  if (test::is_rank()) {
    auto world = join_with(60s);
    const int code = comm::guarded(*world, [&] {
      world->group()->barrier("all have joined");  // who has not says another sentence
      if (world->rank() == 1) throw DataError("the shard 000.tar is no tar file");
      world->group()->barrier("wait for everybody");
    });
    std::exit(code);
  }
  const auto outcome = test::start_ranks("Failure", "GuardedRanksTellTheFirstCause", 3, 60s);
  EXPECT_LT(outcome.seconds, 30);
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{1, 1, 1}));
  EXPECT_TRUE(has(outcome.outputs[1], "error: the shard 000.tar is no tar file"))
      << outcome.outputs[1];
  for (const std::size_t other : {0, 2})
    EXPECT_TRUE(has(outcome.outputs[other],
                    "(the first failure was that of rank 1: the shard 000.tar is no tar file)"))
        << outcome.outputs[other];
}

// A launcher on another host must not start its ranks again for it.
TEST(Failure, GuardedRanksEndLikeTheOneWithAWrongConfiguration) {
  if (test::is_rank()) {
    auto world = join_with(60s);
    const int code = comm::guarded(*world, [&] {
      world->group()->barrier("all have joined");
      if (world->rank() == 1) throw ConfigError("train.lr is no number");
      if (world->rank() == 2) {  // waits elsewhere, as one that saves does
        if (world->first_failure(30s)) throw CheckpointError("the save was given up");
      }
      world->group()->barrier("wait for everybody");
    });
    std::exit(code);
  }
  const auto outcome =
      test::start_ranks("Failure", "GuardedRanksEndLikeTheOneWithAWrongConfiguration", 3, 60s);
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{2, 2, 2}));
  EXPECT_TRUE(
      has(outcome.outputs[0], "(the first failure was that of rank 1: train.lr is no number)"))
      << outcome.outputs[0];
  EXPECT_TRUE(has(outcome.outputs[2],
                  "the save was given up (the first failure was that of rank 1: "
                  "train.lr is no number)"))
      << outcome.outputs[2];
}

// A failure that came before a wrong configuration was found may be worth another start.
TEST(Failure, GuardedRanksEndLikeTheFirstFailure) {
  if (test::is_rank()) {
    auto world = join_with(60s);
    const int code = comm::guarded(*world, [&] {
      world->group()->barrier("all have joined");
      if (world->rank() == 1) throw DataError("the shard 000.tar is no tar file");
      if (world->first_failure(30s) && world->rank() == 2)
        throw ConfigError("train.lr is no number");
      world->group()->barrier("wait for everybody");
    });
    std::exit(code);
  }
  const auto outcome = test::start_ranks("Failure", "GuardedRanksEndLikeTheFirstFailure", 3, 60s);
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{1, 1, 2})) << "its own configuration is wrong";
}

}  // namespace
}  // namespace floe::failure_test
