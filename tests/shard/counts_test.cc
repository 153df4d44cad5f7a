// Bytes and calls: what the engine does equals the closed formulas of docs/engine.md that `floe
// plan` prints. One process acts as rank r of W, so that every case is cheap.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "floe/comm/world.h"
#include "floe/core/str.h"
#include "floe/models/transformer.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"
#include "tests/support/counter.h"

namespace floe::counts_test {
namespace {

using shard::Event;
using shard::Residency;
using shard::SlicedOver;
using shard::Strategy;

struct Case {
  std::string name;
  int world = 4;
  models::TransformerSize size{
      .vocab = 101, .dim = 32, .layers = 5, .heads = 4, .context = 16, .adapter = 4};
  std::vector<std::string> trainable{"*"};
  Strategy strategy = Strategy::full_shard;
  Residency residency = Residency::sharded;
  bool bf16 = false;
  std::optional<at::ScalarType> frozen;
  bool offload = false;
  std::vector<std::string> checkpointing;
  int prefetch = 1;
  std::vector<std::string> units{"DecoderLayer"};
  std::vector<std::pair<std::string, Strategy>> unit_strategies;
  int passes = 1;
  std::optional<shard::Accumulate> accumulate;
  shard::FrozenSharding frozen_sharding = shard::FrozenSharding::all;
  at::ScalarType reduce = at::kFloat;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int world : {1, 2, 4, 7})
    for (const auto& [strategy, name, help, sliced_over, keeps] : shard::kStrategies) {
      if (sliced_over == SlicedOver::neighbours && world % 2 != 0) continue;
      for (const bool tied : {false, true})
        for (const bool bf16 : {tied})
          for (const auto& trainable : std::vector<std::vector<std::string>>{
                   {"*"}, {"*.adapter.*"}, {"layers.3.*", "norm.*"}, {"layers.4.*"}}) {
            Case c;
            c.name = str(name, " W=", world, tied ? " tied" : "", bf16 ? " bf16 " : " ",
                         join(trainable));
            c.world = world;
            c.strategy = strategy;
            c.size.tied = tied;
            c.bf16 = bf16;
            c.trainable = trainable;
            all.push_back(c);
            c.residency = Residency::resident;
            c.name += " resident";
            all.push_back(c);
            c.residency = Residency::sharded;
            c.checkpointing = {"DecoderLayer"};
            c.prefetch = 0;
            c.name += " checkpointed without prefetch";
            all.push_back(c);
          }
    }
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    Case nested;
    nested.name = str("nested units ", name_of(strategy));
    nested.units = {"DecoderLayer", "Attention"};
    nested.strategy = strategy;
    all.push_back(nested);
    Case some;
    some.name = str("strategies per unit, else ", name_of(strategy));
    some.strategy = strategy;
    some.unit_strategies = {{"layers.[012]", Strategy::shard_grad_op},
                            {"layers.3", Strategy::no_shard}};
    all.push_back(some);
    Case large;
    large.name = str("large vocabulary ", name_of(strategy));
    large.strategy = strategy;
    large.size.vocab = 2000;
    large.prefetch = 2;
    all.push_back(large);
  }
  // And with frozen matrices in 8 bits, the types and the places of slices in turn.
  const std::size_t plain = all.size();
  for (std::size_t i = 0; i < plain; ++i) {
    Case c = all[i];
    if (c.trainable == std::vector<std::string>{"*"}) continue;
    c.frozen = i % 2 == 0 ? at::kChar : at::kFloat8_e4m3fn;
    c.offload = i % 4 < 2;
    c.name += str(", frozen in ", c10::toString(*c.frozen), c.offload ? ", in host memory" : "");
    all.push_back(c);
  }
  // Several passes per update, whose gradients add up in both places, and frozen slices inside of a
  // node of two, in turn.
  const std::size_t single = all.size();
  std::size_t number = 0;
  for (std::size_t i = 0; i < single; i += 2) {
    Case c = all[i];
    if (c.world > 4 || c.residency != Residency::sharded || !c.checkpointing.empty()) continue;
    c.passes = 3;
    c.accumulate = ++number % 2 == 0 ? shard::Accumulate::reduced : shard::Accumulate::local;
    c.name += str(", 3 passes, ", name_of(*c.accumulate));
    if (c.world % 2 == 0 && number % 4 < 2) {
      c.frozen_sharding = shard::FrozenSharding::node;
      c.name += ", frozen over 2";
    }
    all.push_back(c);
  }
  return all;
}

struct Training {
  std::shared_ptr<models::Transformer> model;
  std::shared_ptr<shard::Engine> engine;
  std::unique_ptr<optim::AdamW> optimizer;
  test::CountingObserver counts;
  at::Tensor ids;
  int passes = 1;

  explicit Training(const Case& c) {
    model = std::make_shared<models::Transformer>(c.size);
    shard::ShardOptions options;
    options.world = comm::World::fake(c.world - 1, c.world);
    options.strategy = c.strategy;
    options.hybrid_shard_size = 2;
    options.trainable = c.trainable;
    options.frozen.residency = c.residency;
    options.frozen.dtype = c.frozen;
    options.activation_checkpointing = c.checkpointing;
    options.prefetch = c.prefetch;
    options.unit_strategies = c.unit_strategies;
    options.cpu_offload = c.offload;
    options.passes_per_update = passes = c.passes;
    options.accumulate = c.accumulate;
    options.frozen.sharding = c.frozen_sharding;
    if (c.bf16) options.mixed_precision.param = at::kBFloat16;
    options.mixed_precision.reduce = c.reduce;
    engine = shard::fully_shard(model, {.units = c.units, .lone_unit_numel = 1000}, options);
    optimizer = std::make_unique<optim::AdamW>(*engine, optim::AdamWOptions{});
    engine->add_observer(&counts);
    ids = at::randint(0, c.size.vocab, {2, c.size.context}, at::kLong);
  }
  void step() {
    counts.clear();
    for (int pass = 0; pass < passes; ++pass) {
      engine->set_gradient_sync(pass + 1 == passes);
      models::next_token_loss(nn::call(*model, ids), ids).backward();
    }
    engine->agree();
  }
  void update() {
    optimizer->step(1e-3);
    engine->clear_gradients();
  }
};

TEST(Counts, EqualTheFormulas) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const SlicedOver sliced_over = entry_of(c.strategy).sliced_over;
    Training run(c);
    const auto moved = run.engine->plan().moved();
    const auto held = run.engine->plan().held();
    for (int step = 0; step < 3; ++step) {
      run.step();
      if (step > 0) {
        EXPECT_EQ(run.counts.gathers().count, moved.gathers) << "step " << step;
        EXPECT_EQ(run.counts.gathers().bytes, moved.gathered) << "step " << step;
      }
      // Reductions of groups without slices are all-reduces; `replicate` is hybrid's second half.
      const auto reduced = run.counts.of(Event::Kind::reduce),
                 copied = run.counts.of(Event::Kind::replicate);
      EXPECT_EQ(reduced.count + copied.count, moved.reduce_scatters + moved.all_reduces);
      EXPECT_EQ(reduced.bytes + copied.bytes, moved.reduce_scattered + moved.all_reduced);
      const bool whole = sliced_over == SlicedOver::one_rank || c.world == 1;
      if (whole) {
        EXPECT_EQ(moved.reduce_scatters, 0);
      }
      if (sliced_over == SlicedOver::neighbours) {
        EXPECT_EQ(copied.count, moved.all_reduces);
      }
      // Over copies gradients are summed once in an update, however many passes it takes.
      EXPECT_LE(moved.all_reduces, static_cast<std::int64_t>(run.engine->active_groups().size()));
      EXPECT_EQ(run.counts.of(Event::Kind::agree).count, 1);

      const auto memory = run.engine->memory();
      EXPECT_EQ(memory.trainable_slices, held.trainable_slices);
      EXPECT_EQ(memory.frozen_slices, held.frozen_slices);
      EXPECT_EQ(memory.gradient_slices, held.gradient_slices);
      EXPECT_EQ(run.optimizer->state_bytes(), held.optimizer_state);
      EXPECT_EQ(memory.pool_used, 0) << "everything is released after backward";
      EXPECT_LE(memory.pool_peak, held.pool);
      EXPECT_LE(memory.gradient_pool_peak, held.gradient_buffers);
      run.update();
      EXPECT_EQ(run.engine->memory().gradient_slices, 0);
    }
  }
}

// NCCL moves 16 bytes at a time only between such addresses (Note [Aligned slices]).
TEST(Counts, SlicesBeginAtMultiplesOf128BytesInEveryTypeTheyHave) {
  std::vector<Case> all = cases();
  for (const bool bf16 : {false, true})
    for (const at::ScalarType reduce : {at::kFloat, at::kBFloat16})
      for (const auto& trainable :
           std::vector<std::vector<std::string>>{{"*"}, {"*.adapter.*"}, {"layers.3.*", "norm.*"}})
        for (const int world : {3, 4}) {
          Case c;
          c.name = str("W=", world, ", computed in ", bf16 ? "bf16" : "fp32", ", reduced in ",
                       c10::toString(reduce), ", ", join(trainable));
          c.world = world;
          c.bf16 = bf16;
          c.reduce = reduce;
          c.trainable = trainable;
          all.push_back(c);
          if (trainable.front() == "*") continue;
          c.frozen = at::kFloat8_e4m3fn;
          c.name += ", frozen in fp8";
          all.push_back(c);
        }
  for (const Case& c : all) {
    SCOPED_TRACE(c.name);
    Training run(c);
    for (const auto& group : run.engine->groups()) {
      const shard::PlannedGroup& plan = group->plan();
      if (plan.shard_size == 1) continue;
      SCOPED_TRACE(group->name());
      EXPECT_EQ(group->slice().nbytes() % 128, 0U);
      EXPECT_EQ(plan.slice_bytes() % 128, 0);
      EXPECT_EQ(plan.moved_bytes() / plan.shard_size % 128, 0);
      EXPECT_EQ(plan.gathered_bytes() / plan.shard_size % 128, 0);
      EXPECT_EQ(plan.gradient_bytes() / plan.shard_size % 128, 0);
      EXPECT_LT(plan.layout.slice_numel(), plan.layout.numel() / plan.shard_size + 129)
          << "no more than that is padded";
    }
  }
}

TEST(Counts, FrozenParametersCostNothingInBackward) {
  Case c;
  c.trainable = {"layers.4.*"};
  Training run(c);
  for (int step = 0; step < 2; ++step) {
    run.step();
    run.update();
  }
  run.step();
  for (const auto* group : run.engine->trainable_groups())
    EXPECT_EQ(group->name(), "layers.4 trainable") << "only what trains has gradients and state";
  // Everything below the lowest trainable parameter is gathered once, in forward; above it only the
  // head is needed again, and it is still whole when backward begins.
  std::map<std::string, int> gathers;
  for (const auto& line : run.counts.log)
    if (line.starts_with("gather ") || line.starts_with("prefetch "))
      gathers[line.substr(line.find(' ') + 1)] += 1;
  EXPECT_EQ(gathers["embed frozen"], 1);
  EXPECT_EQ(gathers["layers.0 frozen"], 1);
  EXPECT_EQ(gathers["layers.3 frozen"], 1);
  EXPECT_EQ(gathers["layers.4 trainable"], 2);
  EXPECT_EQ(gathers["head frozen"], 1);
  EXPECT_EQ(run.counts.of(Event::Kind::reduce).count, 1);
}

TEST(Counts, ResidentFrozenGroupsAreNeverGathered) {
  Case c;
  c.trainable = {"*.adapter.*"};
  c.residency = Residency::resident;
  Training run(c);
  run.step();
  run.update();
  run.step();
  for (const auto& line : run.counts.log) EXPECT_EQ(line.find("frozen"), std::string::npos) << line;
}

TEST(Counts, UnitsAreReleasedInBackwardAsSoonAsTheyAreDone) {
  Case c;
  c.trainable = {"layers.0.*"};  // everything above is frozen and only passes gradients on
  c.prefetch = 0;
  Training run(c);
  run.step();
  run.update();
  run.step();
  // In backward, layers.3 is released before layers.2 is gathered.
  const auto& log = run.counts.log;
  const auto last = [&](const std::string& line) {
    for (std::size_t i = log.size(); i-- > 0;)
      if (log[i] == line) return static_cast<std::int64_t>(i);
    return std::int64_t{-1};
  };
  ASSERT_GE(last("gather layers.2 frozen"), 0);
  EXPECT_LT(last("release layers.3 frozen"), last("gather layers.2 frozen"));
  EXPECT_LT(last("release layers.2 frozen"), last("gather layers.1 frozen"));
}

TEST(Counts, PrefetchIsAheadAndBytesStayTheSame) {
  for (const int depth : {0, 1, 2}) {
    Case c;
    c.prefetch = depth;
    c.trainable = {"*.adapter.*"};
    Training run(c);
    for (int step = 0; step < 2; ++step) {
      run.step();
      run.update();
    }
    run.step();
    EXPECT_EQ(run.counts.gathers().bytes, run.engine->plan().moved().gathered);
    if (depth == 0)
      EXPECT_EQ(run.counts.of(Event::Kind::prefetch).count, 0);
    else
      EXPECT_GT(run.counts.of(Event::Kind::prefetch).count,
                run.counts.of(Event::Kind::gather).count);
  }
}

TEST(Counts, AutomaticResidencyStaysInsideItsBudget) {
  Case c;
  c.trainable = {"*.adapter.*"};
  const auto sliced = Training(c).engine->plan().held().frozen_slices;
  std::int64_t gathered_before = Training(c).engine->plan().moved().gathered;
  for (const double share : {1.0, 1.5, 2.0, 3.0, 4.0}) {
    auto model = std::make_shared<models::Transformer>(c.size);
    shard::ShardOptions options;
    options.world = comm::World::fake(0, c.world);
    options.trainable = c.trainable;
    options.frozen.residency = Residency::automatic;
    options.frozen.memory_budget_bytes =
        static_cast<std::int64_t>(static_cast<double>(sliced) * share) + 64;
    auto plan = shard::make_plan(*model, {.units = {"DecoderLayer"}, .lone_unit_numel = 1000},
                                 options, c.world);
    EXPECT_LE(plan.held().frozen_slices, options.frozen.memory_budget_bytes);
    EXPECT_LE(plan.moved().gathered, gathered_before) << "more budget never means more traffic";
    gathered_before = plan.moved().gathered;
  }
}

}  // namespace
}  // namespace floe::counts_test
