// Several passes before an update (Note [Accumulation]): real ranks, each with data of its own in
// every pass. Gradients against sums made by hand, in the order that docs/engine.md states, and
// what is moved for them against the plan.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/core/str.h"
#include "floe/models/transformer.h"
#include "floe/nn/layers.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"
#include "tests/support/counter.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

namespace floe::accumulation_test {
namespace {

using shard::Accumulate;
using shard::Event;
using shard::Strategy;

constexpr int kPasses = 3;

test::Recipe recipe_of(std::vector<std::string> trainable) {
  test::Recipe recipe;
  recipe.size = {.vocab = 61, .dim = 24, .layers = 3, .heads = 3, .context = 12, .adapter = 5};
  recipe.trainable = std::move(trainable);
  recipe.device = test::device();
  return recipe;
}

struct Way {
  Strategy strategy = Strategy::full_shard;
  std::optional<Accumulate> accumulate;
  std::vector<std::pair<std::string, Strategy>> unit_strategies{};
  std::optional<at::ScalarType> reduce{};  // beside parameters in fp32
};

std::string name_of(const Way& way) {
  return str(shard::name_of(way.strategy), ", ",
             way.accumulate ? shard::name_of(*way.accumulate) : "by the plan",
             way.unit_strategies.empty() ? "" : ", one unit not sliced",
             way.reduce ? ", reduced in bf16" : "");
}

struct Sharded {
  Sharded(const test::Recipe& recipe, const Way& way, const std::shared_ptr<comm::World>& world)
      : model(std::make_shared<models::Transformer>(recipe.size)) {
    shard::ShardOptions options;
    options.world = world;
    options.strategy = way.strategy;
    options.hybrid_shard_size = 2;
    options.unit_strategies = way.unit_strategies;
    options.trainable = recipe.trainable;
    options.seed = recipe.seed;
    options.passes_per_update = kPasses;
    options.accumulate = way.accumulate;
    options.mixed_precision.reduce = way.reduce;
    engine =
        shard::fully_shard(model, {.units = {"DecoderLayer"}, .lone_unit_numel = 1000}, options);
    engine->add_observer(&counts);
  }
  ~Sharded() { engine->remove_observer(&counts); }

  // `factor`: of the first pass's loss.
  void update(const test::Recipe& recipe, int step, int rank, double factor = 1) {
    for (int pass = 0; pass < kPasses; ++pass) {
      engine->set_gradient_sync(pass + 1 == kPasses);
      const at::Tensor ids = test::batch_of(recipe, step, pass, rank);
      const at::Tensor loss = models::next_token_loss(nn::call(*model, ids), ids);
      (pass == 0 ? loss * factor : loss).backward();
    }
  }

  std::shared_ptr<models::Transformer> model;
  std::shared_ptr<shard::Engine> engine;
  test::CountingObserver counts;
};

using Gradients = std::map<std::string, at::Tensor>;

// What one process finds, [rank][pass].
std::vector<std::vector<Gradients>> all_gradients(const test::Recipe& recipe, int step, int world) {
  Way whole{.strategy = Strategy::no_shard};
  Sharded alone(recipe, whole, comm::World::fake(0, 1, recipe.device));
  std::vector<std::vector<Gradients>> all(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank)
    for (int pass = 0; pass < kPasses; ++pass) {
      const at::Tensor ids = test::batch_of(recipe, step, pass, rank);
      models::next_token_loss(nn::call(*alone.model, ids), ids).backward();
      Gradients found;
      for (const auto* group : alone.engine->active_groups())
        for (std::size_t i = 0; i < group->plan().parameters.size(); ++i) {
          const std::string& name = group->parameter(i).name;
          found[name] = alone.engine->full_gradient(name).clone();
        }
      all[static_cast<std::size_t>(rank)].push_back(std::move(found));
      alone.engine->clear_gradients();
    }
  return all;
}

// reduced: over ranks first, pass by pass. local: over passes first, rank by rank.
at::Tensor expected(const std::vector<std::vector<Gradients>>& all, const std::string& name,
                    bool ranks_first) {
  const std::size_t world = all.size();
  at::Tensor total;
  const auto add = [](at::Tensor& sum, const at::Tensor& more) {
    sum = sum.defined() ? sum + more : more;
  };
  if (ranks_first) {
    for (std::size_t pass = 0; pass < kPasses; ++pass) {
      at::Tensor sum;
      for (std::size_t rank = 0; rank < world; ++rank) add(sum, all[rank][pass].at(name));
      add(total, sum / static_cast<double>(world));
    }
    return total;
  }
  for (std::size_t rank = 0; rank < world; ++rank) {
    at::Tensor sum;
    for (std::size_t pass = 0; pass < kPasses; ++pass) add(sum, all[rank][pass].at(name));
    add(total, sum);
  }
  return total / static_cast<double>(world);
}

void expect_counts(Sharded& job) {
  const shard::MovedBytes moved = job.engine->plan().moved();
  EXPECT_EQ(job.counts.gathers().count, moved.gathers);
  EXPECT_EQ(job.counts.gathers().bytes, moved.gathered);
  const auto reduced = job.counts.of(Event::Kind::reduce);
  const auto copied = job.counts.of(Event::Kind::replicate);
  EXPECT_EQ(reduced.count + copied.count, moved.reduce_scatters + moved.all_reduces);
  EXPECT_EQ(reduced.bytes + copied.bytes, moved.reduce_scattered + moved.all_reduced);
}

void check(const test::Recipe& recipe, const Way& way, const std::shared_ptr<comm::World>& world) {
  SCOPED_TRACE(name_of(way));
  Sharded job(recipe, way, world);
  const shard::ShardPlan& plan = job.engine->plan();
  const bool local = plan.accumulates() == Accumulate::local;
  const auto all = all_gradients(recipe, 1, world->size());
  job.update(recipe, 0, world->rank());  // in which the engine learns the order of units
  EXPECT_TRUE(job.engine->agree().finite);
  job.engine->clear_gradients();
  job.counts.clear();
  job.engine->reset_memory_peaks();
  job.update(recipe, 1, world->rank());
  expect_counts(job);
  EXPECT_LE(job.engine->memory().gradient_pool_peak, plan.held().gradient_buffers);
  EXPECT_EQ(job.engine->memory().gradient_pool_held, 0);
  // Once over copies, whatever the passes; sliced ones as the plan says.
  std::int64_t sliced = 0, copies = 0;
  for (const auto* group : job.engine->active_groups()) {
    sliced += group->plan().shard_size > 1;
    copies += group->plan().replicas > 1;
  }
  EXPECT_EQ(plan.moved().reduce_scatters, sliced * (local ? 1 : kPasses));
  EXPECT_EQ(plan.moved().all_reduces, copies);

  double largest = 0;
  for (const auto* group : job.engine->active_groups())
    for (std::size_t i = 0; i < group->plan().parameters.size(); ++i) {
      const std::string& name = group->parameter(i).name;
      const bool in_slices = group->plan().shard_size > 1 && !local;
      const at::Tensor wanted = expected(all, name, /*ranks_first=*/in_slices);
      const at::Tensor found = job.engine->full_gradient(name);
      ASSERT_TRUE(found.defined()) << name;
      largest = std::max(largest, wanted.abs().max().item<double>());
      // In the stated order to the bit, but for two sums one after the other (hybrid), and for
      // collectives of the GPU, which have an order of their own.
      const bool exact = !way.reduce && world->device().is_cpu() &&
                         !(group->plan().shard_size > 1 && group->plan().replicas > 1);
      const double difference = (found.cpu() - wanted.cpu()).abs().max().item<double>();
      if (exact)
        EXPECT_EQ(difference, 0) << name;
      else
        EXPECT_LE(difference,
                  (way.reduce ? 0.02 : 1e-5) * std::max(1e-6, wanted.abs().max().item<double>()))
            << name;
    }
  EXPECT_GT(largest, 1e-3) << "there is something to compare";
  EXPECT_TRUE(job.engine->agree().finite) << "all ranks have issued the same collectives";
}

void check_all() {
  const auto world = test::join_world();
  const test::Recipe mixed = recipe_of({"*.adapter.*", "norm.*", "layers.2.norm1.*"});
  const test::Recipe whole = recipe_of({"*"});
  std::vector<Way> ways;
  for (const Accumulate accumulate : {Accumulate::reduced, Accumulate::local}) {
    ways.push_back({Strategy::full_shard, accumulate});
    ways.push_back({Strategy::shard_grad_op, accumulate});
    ways.push_back({Strategy::full_shard, accumulate, {{"layers.1", Strategy::no_shard}}});
    if (world->size() % 2 == 0) ways.push_back({Strategy::hybrid, accumulate});
    if (world->size() % 2 == 0) ways.push_back({Strategy::hybrid, accumulate, {}, at::kBFloat16});
  }
  ways.push_back({Strategy::no_shard, {}});
  ways.push_back({Strategy::no_shard, {}, {}, at::kBFloat16});
  for (const Way& way : ways) check(whole, way, world);
  for (const Way& way : {Way{Strategy::full_shard}, Way{Strategy::no_shard}})
    check(mixed, way, world);
}

// What the plan chooses where nobody does: whole gradients of few parameters are held, those of all
// are not, and narrower reductions than the masters are not summed up.
TEST(Accumulation, ThePlanAddsUpLocallyWhereThatCostsLittleAndLosesNothing) {
  models::Transformer model(
      {.vocab = 512, .dim = 128, .layers = 6, .heads = 4, .context = 32, .adapter = 8});
  const auto plan_of = [&](const std::vector<std::string>& trainable, auto&& change) {
    shard::ShardOptions options;
    options.trainable = trainable;
    options.passes_per_update = kPasses;
    change(options);
    return shard::make_plan(model, {.units = {"DecoderLayer"}, .lone_unit_numel = 1000}, options,
                            4);
  };
  const auto as_it_is = [](auto&) {};
  const std::vector<std::string> adapters{"*.adapter.*"};
  const auto few = plan_of(adapters, as_it_is), all = plan_of({"*"}, as_it_is);
  EXPECT_EQ(few.accumulates(), Accumulate::local);
  EXPECT_EQ(all.accumulates(), Accumulate::reduced);

  // The bound on memory: a tenth of the peak.
  const auto peak = [&](const std::vector<std::string>& trainable, Accumulate where) {
    const auto plan = plan_of(trainable, [&](auto& options) { options.accumulate = where; });
    EXPECT_EQ(plan.accumulates(), where);
    return static_cast<double>(plan.held().peak());
  };
  EXPECT_LE(peak(adapters, Accumulate::local), 1.1 * peak(adapters, Accumulate::reduced));
  EXPECT_GT(peak({"*"}, Accumulate::local), 1.1 * peak({"*"}, Accumulate::reduced));
  // What that means for an update.
  EXPECT_EQ(kPasses * few.moved().reduce_scatters,
            plan_of(adapters, [](auto& options) { options.accumulate = Accumulate::reduced; })
                .moved()
                .reduce_scatters);

  const auto where = [&](auto&& change) { return plan_of(adapters, change).accumulates(); };
  EXPECT_EQ(where([](auto& options) { options.mixed_precision.reduce = at::kBFloat16; }),
            Accumulate::reduced);
  EXPECT_EQ(where([](auto& options) { options.mixed_precision.param = at::kBFloat16; }),
            Accumulate::reduced)
      << "reduced as parameters are computed with";
  EXPECT_EQ(where([](auto& options) {
              options.mixed_precision.param = at::kBFloat16;
              options.mixed_precision.reduce = at::kFloat;
            }),
            Accumulate::local);
  EXPECT_EQ(where([](auto& options) { options.cpu_offload = true; }), Accumulate::reduced);
}

TEST_RANKS(Accumulation, TwoRanks, 2) { check_all(); }
TEST_RANKS(Accumulation, ThreeRanks, 3) { check_all(); }
TEST_RANKS(Accumulation, FourRanks, 4) { check_all(); }

// What is not finite in any pass of any rank is found by all of them, and the next update is good.
TEST_RANKS(Accumulation, APassThatIsNotFiniteSkipsTheUpdateEverywhere, 4) {
  const auto world = test::join_world();
  const test::Recipe recipe = recipe_of({"*"});
  for (const Way& way : {Way{Strategy::hybrid, Accumulate::reduced},
                         Way{Strategy::full_shard, Accumulate::local}, Way{Strategy::no_shard}}) {
    SCOPED_TRACE(name_of(way));
    Sharded job(recipe, way, world);
    job.update(recipe, 0, world->rank(),
               world->rank() == 2 ? std::numeric_limits<double>::quiet_NaN() : 1.0);
    EXPECT_FALSE(job.engine->agree().finite);
    job.engine->clear_gradients();
    job.update(recipe, 1, world->rank());
    EXPECT_TRUE(job.engine->agree().finite);
  }
}

TEST_RANKS(Accumulation, AnUpdateNeedsAPassThatIsTheLast, 2) {
  const auto world = test::join_world();
  const test::Recipe recipe = recipe_of({"*"});
  for (const Way& way : {Way{Strategy::full_shard, Accumulate::local}, Way{Strategy::no_shard}}) {
    Sharded job(recipe, way, world);
    job.engine->set_gradient_sync(false);
    const at::Tensor ids = test::batch_of(recipe, 0, 0, world->rank());
    models::next_token_loss(nn::call(*job.model, ids), ids).backward();
    EXPECT_THROW(job.engine->agree(), ShardError);
  }
}

TEST_RANKS(Accumulation, RanksThatAddUpDifferentlyAreRefused, 2) {
  const auto world = test::join_world();
  const Way way{.accumulate = world->rank() == 0 ? Accumulate::local : Accumulate::reduced};
  try {
    const Sharded job(recipe_of({"*"}), way, world);
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("gradients add up"), std::string::npos) << e.what();
  }
}

// Two units, of which a pass may leave the second out.
struct Pair : nn::Module {
  Pair() : first(child<nn::Linear>("first", 6, 6)), second(child<nn::Linear>("second", 6, 6)) {}
  at::Tensor forward(const at::Tensor& x, bool both) {
    const at::Tensor h = at::tanh(first(x));
    return both ? second(h) : h;
  }
  nn::Ptr<nn::Linear> first, second;
};

// A group that the last pass leaves out still owes its sum to the other ranks.
TEST_RANKS(Accumulation, AUnitThatTheLastPassLeavesOutIsSummedAllTheSame, 4) {
  const auto world = test::join_world();
  for (const Way& way :
       {Way{Strategy::hybrid, Accumulate::reduced}, Way{Strategy::hybrid, Accumulate::local},
        Way{Strategy::hybrid, Accumulate::reduced, {}, at::kBFloat16}, Way{Strategy::no_shard},
        Way{Strategy::no_shard, {}, {}, at::kBFloat16},
        Way{Strategy::full_shard, Accumulate::reduced},
        Way{Strategy::full_shard, Accumulate::local}}) {
    SCOPED_TRACE(name_of(way));
    const auto model = std::make_shared<Pair>();
    shard::ShardOptions options;
    options.world = world;
    options.strategy = way.strategy;
    options.hybrid_shard_size = 2;
    options.accumulate = way.accumulate;
    options.passes_per_update = 2;
    options.mixed_precision.reduce = way.reduce;
    const auto engine = shard::fully_shard(model, {.units = {"Linear"}}, options);
    const at::Tensor x = at::ones({2, 6}, at::device(world->device())) * (world->rank() + 1);
    for (int step = 0; step < 2; ++step) {
      engine->set_gradient_sync(false);
      nn::call(*model, x, true).sum().backward();
      engine->set_gradient_sync(true);
      nn::call(*model, x, false).sum().backward();
      EXPECT_TRUE(engine->agree().finite);
      // The bias of the last layer has a gradient of one per row, on every rank.
      EXPECT_TRUE(engine->full_gradient("second.bias").cpu().equal(at::full({6}, 2.0F)));
      // The other ranks' rows are in the weight's: their mean is no rank's own.
      at::Tensor all = engine->full_gradient("second.weight").clone();
      at::Tensor mean = all.clone();
      world->group()->all_reduce(mean, comm::Reduce::average, "mean").wait();
      EXPECT_LE((mean - all).abs().max().item<double>(), 1e-7) << "the same on all ranks";
      EXPECT_GT(all.abs().max().item<double>(), 0);
      engine->clear_gradients();
    }
  }
}

}  // namespace
}  // namespace floe::accumulation_test
