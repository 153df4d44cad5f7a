// Passes whose work on the device is replayed (Note [Repeated passes]): the engine is left as by a
// pass that runs, and gradients that stay in place are the same numbers. What a GPU replays is
// tested by step_graphs_test.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "floe/core/error.h"
#include "floe/models/transformer.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/pass/pass_record.h"
#include "floe/shard/plan/plan.h"
#include "tests/support/ranks.h"

namespace floe::repeat_test {
namespace {

using shard::Strategy;

const models::TransformerSize kSize{
    .vocab = 50, .dim = 16, .layers = 3, .heads = 2, .context = 8, .adapter = 4};

class Job {
 public:
  explicit Job(std::shared_ptr<comm::World> world, Strategy strategy = Strategy::full_shard,
               bool half = false, std::vector<std::string> trainable = {"*"})
      : model(std::make_shared<models::Transformer>(kSize)) {
    shard::ShardOptions options;
    options.world = std::move(world);
    options.strategy = strategy;
    options.hybrid_shard_size = 2;
    options.trainable = std::move(trainable);
    if (half) options.mixed_precision = {.param = at::kBFloat16, .reduce = at::kFloat};
    engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
  }
  void pass(std::int64_t number) {
    const at::Tensor ids = (at::arange(16, at::kLong).view({2, 8}) * (number + 3)).remainder(50);
    models::next_token_loss(nn::call(*model, ids), ids).backward();
  }
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const shard::FlatGroup* group : engine->active_groups()) all.push_back(group->gradient());
    return all;
  }

  std::shared_ptr<models::Transformer> model;
  std::shared_ptr<shard::Engine> engine;
};

class Tally final : public shard::Observer {
 public:
  void on(const shard::Event& event) override { counts[event.kind] += 1; }
  bool only_counts() const override { return true; }
  std::map<shard::Event::Kind, int> counts;
};

void expect_in_place(const std::shared_ptr<comm::World>& world, Strategy strategy, bool half,
                     const std::vector<std::string>& trainable) {
  Job plain(world, strategy, half, trainable), staying(world, strategy, half, trainable);
  staying.engine->keep_gradients_in_place();
  std::vector<const void*> places;
  for (int step = 0; step < 3; ++step) {
    for (Job* job : {&plain, &staying})
      for (int micro = 0; micro < 2; ++micro) job->pass(10 * step + 2 * micro + world->rank());
    const auto want = plain.gradients(), got = staying.gradients();
    ASSERT_EQ(want.size(), got.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[i].defined(), want[i].defined());
      if (!want[i].defined()) continue;
      EXPECT_TRUE(at::equal(got[i], want[i])) << "step " << step << ", group " << i;
      if (step == 0) places.push_back(got[i].const_data_ptr());
      EXPECT_EQ(got[i].const_data_ptr(), places[i]);
    }
    EXPECT_EQ(staying.engine->agree().gradient_norm, plain.engine->agree().gradient_norm);
    for (Job* job : {&plain, &staying}) job->engine->clear_gradients();
    EXPECT_EQ(plain.engine->memory().gradient_slices, 0);
    EXPECT_EQ(staying.engine->memory().gradient_slices,
              staying.engine->plan().held().gradient_slices);
  }
}

TEST_RANKS(GradientsInPlace, AreTheSameNumbersAtTheSamePlaces, 2) {
  // Once: a rank that left and joined again could meet what its neighbour has not left yet.
  const auto world = comm::World::join();
  for (const shard::StrategyEntry& entry : shard::kStrategies)
    for (const bool half : {false, true}) expect_in_place(world, entry.strategy, half, {"*"});
  expect_in_place(world, Strategy::full_shard, true, {"*.adapter.*"});
}

TEST_RANKS(GradientsInPlace, OfOneProcess, 1) {
  const auto world = comm::World::join();
  for (const bool half : {false, true}) expect_in_place(world, Strategy::full_shard, half, {"*"});
}

TEST_RANKS(RepeatedPass, LeavesTheEngineAsAPassThatRuns, 2) {
  Job job(comm::World::join());
  shard::Engine& engine = *job.engine;
  engine.keep_gradients_in_place();
  Tally tally;
  engine.add_observer(&tally);
  for (int step = 0; step < 3; ++step) {
    job.pass(1);
    engine.agree();
    engine.clear_gradients();
  }
  const auto key = engine.pass_key();
  tally.counts.clear();
  const shard::PassRecord record = engine.record_pass([&] { job.pass(1); });
  const auto after = engine.pass_key();
  EXPECT_NE(after, key);  // there are gradients now
  const auto events = tally.counts;
  const auto gradients = job.gradients();
  const double norm = engine.agree().gradient_norm;
  engine.clear_gradients();
  EXPECT_EQ(engine.pass_key(), key);

  tally.counts.clear();
  engine.repeat_pass(record);
  EXPECT_EQ(engine.pass_key(), after);
  EXPECT_EQ(tally.counts, events);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    EXPECT_EQ(job.gradients()[i].const_data_ptr(), gradients[i].const_data_ptr());
  EXPECT_EQ(engine.agree().gradient_norm, norm);
  engine.clear_gradients();

  job.pass(1);  // and a pass that runs finds what it needs
  EXPECT_EQ(engine.agree().gradient_norm, norm);
  EXPECT_EQ(engine.memory().pool_held, 0);
  engine.remove_observer(&tally);
}

// One rank alone adds to its gradient in place, also to one that a repeated pass has left there.
TEST_RANKS(RepeatedPass, IsAddedToByAPassThatRuns, 1) {
  const auto world = comm::World::join();
  for (const bool half : {false, true}) {
    Job job(world, Strategy::full_shard, half);
    shard::Engine& engine = *job.engine;
    engine.keep_gradients_in_place();
    job.pass(1);
    job.pass(2);
    std::vector<at::Tensor> want;
    for (const at::Tensor& gradient : job.gradients()) want.push_back(gradient.clone());
    engine.clear_gradients();
    const shard::PassRecord record = engine.record_pass([&] { job.pass(1); });
    engine.clear_gradients();  // the device's memory still holds what the pass left there

    engine.repeat_pass(record);
    job.pass(2);
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(at::equal(job.gradients()[i], want[i])) << "group " << i;
  }
}

TEST_RANKS(RepeatedPass, CountsInTheAgreementAboutOrder, 2) {
  Job job(comm::World::join());
  shard::Engine& engine = *job.engine;
  engine.keep_gradients_in_place();
  for (int step = 0; step < 2; ++step) {
    job.pass(1);
    engine.clear_gradients();
  }
  const shard::PassRecord record = engine.record_pass([&] { job.pass(1); });
  engine.clear_gradients();
  EXPECT_NO_THROW(engine.agree());
  engine.repeat_pass(record);
  EXPECT_NO_THROW(engine.agree());
  engine.clear_gradients();
  if (engine.world().rank() == 0) engine.repeat_pass(record);
  EXPECT_THROW(engine.agree(), ShardError);
}

TEST_RANKS(RepeatedPass, RanksTellWhetherTheyWouldDoTheSame, 2) {
  Job job(comm::World::join());
  EXPECT_TRUE(job.engine->ranks_agree(7));
  EXPECT_FALSE(job.engine->ranks_agree(static_cast<std::uint64_t>(job.engine->world().rank())));
  EXPECT_TRUE(job.engine->ranks_agree(8));
}

TEST(RepeatedPass, NotWhileSomebodyWatches) {
  class Watch final : public shard::Observer {
    void on(const shard::Event&) override {}
  } watch;
  Job job(comm::World::fake(0, 2));
  EXPECT_TRUE(job.engine->may_repeat());
  job.engine->add_observer(&watch);
  EXPECT_FALSE(job.engine->may_repeat());
  job.engine->remove_observer(&watch);
  job.engine->measure_local_gradients(true);
  EXPECT_FALSE(job.engine->may_repeat());
  job.engine->measure_local_gradients(false);
  const std::uint64_t layout = job.engine->layout_number();
  job.engine->set_trainable({"layers.1.*"});
  EXPECT_NE(job.engine->layout_number(), layout);
}

}  // namespace
}  // namespace floe::repeat_test
