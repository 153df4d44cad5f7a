// Sets of parameters that train in turn: the same numbers as a loop that freezes and unfreezes by
// hand, no traffic at a switch, and the memory of one set.
#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/core/str.h"
#include "floe/io/safetensors/safetensors.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/nn/activations/host_store.h"
#include "floe/nn/layers.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/optim/ema.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"
#include "tests/support/counter.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

namespace floe::sets_test {
namespace {

using shard::ParameterSet;
using shard::Residency;
using shard::Rest;
using shard::Strategy;

constexpr std::array kAllRests{Rest::keep, Rest::offload, Rest::drop};

using Optimizers = std::vector<std::unique_ptr<optim::AdamW>>;

Optimizers optimizers_of(shard::Engine& engine, const optim::AdamWOptions& options = {}) {
  Optimizers optimizers;
  for (std::size_t set = 0; set < engine.sets().size(); ++set)
    optimizers.push_back(std::make_unique<optim::AdamW>(engine, options, set));
  return optimizers;
}

// ---- the seed's own job: two layers, two optimizers, every k steps the other one ----

struct TwoLayers : nn::Module {
  TwoLayers() {
    layer1 = child<nn::Linear>("layer1", 6, 10);
    layer2 = child<nn::Linear>("layer2", 10, 3);
  }
  at::Tensor forward(const at::Tensor& x) { return layer2(at::gelu(layer1(x))); }
  nn::Ptr<nn::Linear> layer1, layer2;
};

struct SeedJob {
  int world = 1, steps = 12, every = 2;
  double lr = 1e-2;

  at::Tensor batch(int step, int rank) const {
    at::manual_seed(100 * static_cast<std::uint64_t>(step) + static_cast<std::uint64_t>(rank));
    return at::randn({5, 6});
  }
  static at::Tensor loss(const at::Tensor& y) { return (y - 0.5).square().mean(); }

  // requires_grad off and on by hand, two optimizers of torch.
  std::map<std::string, at::Tensor> by_hand(bool reset) const {
    TwoLayers net;
    nn::materialize(net, 3);
    struct Moments {
      at::Tensor average, square;
      float steps = 0;
    };
    std::map<std::string, Moments> moments;
    for (int step = 0; step < steps; ++step) {
      const std::string active = step / every % 2 == 0 ? "layer1" : "layer2";
      if (reset && step % every == 0) moments.clear();
      for (auto& p : nn::named_parameters(net)) {
        p.tensor.requires_grad_(p.name.starts_with(active));
        p.tensor.mutable_grad().reset();
      }
      for (int rank = 0; rank < world; ++rank)
        (loss(net.forward(batch(step, rank))) / world).backward();
      const at::NoGradGuard no_grad;
      for (auto& p : nn::named_parameters(net)) {
        if (!p.tensor.requires_grad()) continue;
        Moments& m = moments[p.name];
        if (!m.average.defined()) m = {at::zeros_like(p.tensor), at::zeros_like(p.tensor)};
        const at::Tensor values = p.tensor.detach(), count = at::full({}, ++m.steps);
        at::_fused_adamw_({values}, {p.tensor.grad()}, {m.average}, {m.square}, {}, {count}, lr,
                          0.9, 0.999, 0.0, 1e-8, false, false);
      }
    }
    std::map<std::string, at::Tensor> weights;
    for (auto& p : nn::named_parameters(net)) weights[p.name] = p.tensor.detach().clone();
    return weights;
  }

  std::map<std::string, at::Tensor> by_engine(const std::shared_ptr<comm::World>& ranks,
                                              Strategy strategy, Rest rest) const {
    auto net = std::make_shared<TwoLayers>();
    shard::ShardOptions options;
    options.world = ranks;
    options.strategy = strategy;
    options.seed = 3;
    options.sets = {{"one", {"layer1.*"}, rest}, {"two", {"layer2.*"}, rest}};
    const auto engine = shard::fully_shard(net, {.units = {"Linear"}}, options);
    const Optimizers optimizers = optimizers_of(*engine);
    for (int step = 0; step < steps; ++step) {
      const auto set = static_cast<std::size_t>(step / every % 2);
      engine->activate(set);
      loss(nn::call(*net, batch(step, ranks->rank()).to(ranks->device()))).backward();
      EXPECT_TRUE(engine->agree().finite);
      optimizers[set]->step(lr);
      engine->clear_gradients();
    }
    std::map<std::string, at::Tensor> weights;
    for (const auto& p : engine->plan().parameters)
      weights[p.name] = engine->full_parameter(p.name).cpu();
    return weights;
  }
};

void check_seed_job() {
  const auto world = test::join_world();
  SeedJob job;
  job.world = world->size();
  for (const Strategy strategy : {Strategy::no_shard, Strategy::full_shard})
    for (const Rest rest : kAllRests) {
      SCOPED_TRACE(str(name_of(strategy), ", ", name_of(rest)));
      const auto expected = job.by_hand(rest == Rest::drop);
      for (const auto& [name, weight] : job.by_engine(world, strategy, rest))
        EXPECT_LE((weight - expected.at(name)).abs().max().item<double>(), 1e-6) << name;
    }
}
TEST_RANKS(Sets, SeedJobOnOneRank, 1) { check_seed_job(); }
TEST_RANKS(Sets, SeedJobOnTwoRanks, 2) { check_seed_job(); }
TEST_RANKS(Sets, SeedJobOnFourRanks, 4) { check_seed_job(); }

// ---- every way of sharding, overlapping sets, mixed precision ----

struct Way {
  std::string name;
  Strategy strategy = Strategy::full_shard;
  int hybrid_shard_size = 1;
  Residency residency = Residency::sharded;
  bool cpu_offload = false;
};

struct Scenario {
  std::string name;
  std::vector<std::vector<std::string>> sets;
  bool mixed = false;
  std::vector<std::string> checkpointing;
  bool tied = false;
};

std::vector<Scenario> scenarios() {
  const std::vector<std::vector<std::string>> layers{{"layers.0.*"}, {"layers.2.*", "norm.*"}};
  const std::vector<std::vector<std::string>> overlapping{
      {"*.adapter.*", "norm.*"}, {"layers.1.*"}, {"layers.1.adapter.*", "layers.2.norm1.*"}};
  return {
      {"apart", layers},
      {"overlapping", overlapping},
      {"overlapping, mixed precision", overlapping, true},
      {"checkpointed", layers, false, {"DecoderLayer"}},
      {"apart, mixed precision, checkpointed", layers, true, {"DecoderLayer"}},
      {"tied", {{"*embed*"}, {"layers.1.*"}}, false, {}, true},
  };
}

void check(const Way& way, const Scenario& scenario, Rest rest,
           const std::shared_ptr<comm::World>& world) {
  SCOPED_TRACE(str(way.name, ", ", scenario.name, ", ", name_of(rest)));
  test::Recipe recipe;
  recipe.size = {.vocab = 61, .dim = 24, .layers = 3, .heads = 3, .context = 12, .adapter = 5};
  recipe.size.tied = scenario.tied;
  recipe.adamw.decay = {0.1, {}};
  recipe.sets = scenario.sets;
  recipe.device = world->device();
  if (scenario.mixed) recipe.param_dtype = at::kBFloat16;
  test::ReferenceTrainer reference(recipe, world->size());

  auto model = std::make_shared<models::Transformer>(recipe.size);
  shard::ShardOptions options;
  options.world = world;
  options.strategy = way.strategy;
  options.hybrid_shard_size = way.hybrid_shard_size;
  options.cpu_offload = way.cpu_offload;
  options.frozen.residency = way.residency;
  options.activation_checkpointing = scenario.checkpointing;
  options.seed = recipe.seed;
  if (scenario.mixed) {
    options.mixed_precision.param = at::kBFloat16;
    options.mixed_precision.reduce = at::kFloat;
  }
  for (std::size_t i = 0; i < scenario.sets.size(); ++i)
    options.sets.push_back({std::string(1, static_cast<char>('a' + i)), scenario.sets[i], rest});
  const auto engine =
      shard::fully_shard(model, {.units = {"DecoderLayer"}, .lone_unit_numel = 1000}, options);
  const Optimizers optimizers = optimizers_of(*engine, recipe.adamw);

  const std::size_t num_sets = scenario.sets.size();
  for (int step = 0; step < 8; ++step) {
    const std::size_t set = static_cast<std::size_t>(step) / 2 % num_sets;
    if (step % 2 == 0 && step > 0) {
      engine->activate(set);
      reference.activate(set, rest == Rest::drop);
    }
    const auto expected = reference.step();
    const at::Tensor ids = test::batch_of(recipe, step, 0, world->rank());
    const at::Tensor loss = models::next_token_loss(nn::call(*model, ids), ids);
    loss.backward();
    EXPECT_NEAR(loss.item<double>(), expected.losses[static_cast<std::size_t>(world->rank())],
                scenario.mixed ? 2e-3 : 1e-5)
        << "step " << step;
    for (const auto& p : engine->plan().parameters)
      EXPECT_EQ(engine->full_gradient(p.name).defined(), expected.gradients.contains(p.name))
          << p.name << " in step " << step;
    EXPECT_NEAR(engine->agree().gradient_norm, expected.gradient_norm,
                (scenario.mixed ? 1e-2 : 1e-5) * expected.gradient_norm);
    optimizers[set]->step(recipe.lr);
    engine->clear_gradients();
  }
  for (const auto& [name, weight] : reference.weights()) {
    at::Tensor difference =
        (engine->full_parameter(name).to(recipe.device, at::kFloat) - weight).abs();
    // The gradient of a key bias is zero in exact arithmetic: AdamW moves it by rounding noise.
    if (name.ends_with("qkv.bias")) difference.narrow(0, recipe.size.dim, recipe.size.dim).zero_();
    EXPECT_LE(difference.max().item<double>(), scenario.mixed ? 4e-3 : 1e-5) << name;
  }
}

void check_ways() {
  const auto world = test::join_world();
  std::vector<Way> ways{{"full_shard"},
                        {"no_shard", Strategy::no_shard},
                        {"shard_grad_op", Strategy::shard_grad_op},
                        {"resident", Strategy::full_shard, 1, Residency::resident},
                        {"cpu_offload", Strategy::full_shard, 1, Residency::sharded, true}};
  if (world->size() % 2 == 0) ways.push_back({"hybrid", Strategy::hybrid, 2});
  const auto all = scenarios();
  // Every pair of way and scenario once over the world sizes, every Rest with every way.
  for (std::size_t w = 0; w < ways.size(); ++w)
    for (std::size_t s = 0; s < all.size(); ++s)
      check(ways[w], all[s], kAllRests[(w + s + static_cast<std::size_t>(world->size())) % 3],
            world);
}
TEST_RANKS(Sets, EveryWayOnOneRank, 1) { check_ways(); }
TEST_RANKS(Sets, EveryWayOnTwoRanks, 2) { check_ways(); }
TEST_RANKS(Sets, EveryWayOnThreeRanks, 3) { check_ways(); }

// ---- what a switch costs ----

const models::TransformerSize kSize{
    .vocab = 64, .dim = 64, .layers = 4, .heads = 4, .context = 16, .adapter = 16};

struct Job {
  std::shared_ptr<models::Transformer> model;
  std::shared_ptr<shard::Engine> engine;
  Optimizers optimizers;
  at::Tensor ids;

  void step() {
    models::next_token_loss(nn::call(*model, ids), ids).backward();
    engine->agree();
    optimizers[engine->active_set()]->step(1e-3);
    engine->clear_gradients();
  }
};

Job job_of(const std::shared_ptr<comm::World>& world, std::vector<ParameterSet> sets,
           Strategy strategy, bool mixed) {
  Job job;
  job.model = std::make_shared<models::Transformer>(kSize);
  shard::ShardOptions options;
  options.world = world;
  options.strategy = strategy;
  options.sets = std::move(sets);
  if (mixed) {
    options.mixed_precision.param = at::kBFloat16;
    options.mixed_precision.reduce = at::kFloat;
  }
  job.engine = shard::fully_shard(job.model, {.units = {"DecoderLayer"}}, options);
  job.optimizers = optimizers_of(*job.engine);
  at::manual_seed(5);
  job.ids = at::randint(0, kSize.vocab, {2, kSize.context}, at::kLong).to(world->device());
  return job;
}

const std::vector<std::string> kSmall{"layers.3.*"}, kLarge{"layers.1.*", "layers.2.*"};

TEST_RANKS(Sets, ASwitchMovesNoParameter, 2) {
  const auto world = test::join_world();
  for (const Strategy strategy : {Strategy::full_shard, Strategy::no_shard})
    for (const Rest rest : kAllRests) {
      Job job = job_of(world, {{"small", kSmall, rest}, {"large", kLarge, rest}}, strategy, true);
      test::CountingObserver counter;
      job.engine->add_observer(&counter);
      for (int turn = 0; turn < 4; ++turn) {
        counter.clear();
        job.engine->activate(static_cast<std::size_t>(turn % 2));
        EXPECT_TRUE(counter.log.empty()) << join(counter.log, ", ");
        for (int step = 0; step < 2; ++step) {
          counter.clear();
          job.step();
          if (turn == 0 && step == 0) continue;  // the order of units is learnt
          const auto moved = job.engine->plan().moved();
          EXPECT_EQ(counter.gathers().count, moved.gathers) << "turn " << turn << " step " << step;
          EXPECT_EQ(counter.gathers().bytes, moved.gathered);
          const std::int64_t reductions =
              moved.reduce_scatters + (strategy == Strategy::no_shard ? moved.all_reduces : 0);
          EXPECT_EQ(counter.of(shard::Event::Kind::reduce).count, reductions);
        }
      }
      job.engine->remove_observer(&counter);
    }
}

TEST_RANKS(Sets, UnitsBelowTheActiveSetAreNotDifferentiated, 2) {
  const auto world = test::join_world();
  Job job = job_of(world, {{"low", {"layers.0.*"}}, {"high", {"layers.3.*"}}}, Strategy::full_shard,
                   false);
  struct Backwards : shard::Observer {
    void on(const shard::Event& event) override {
      if (event.kind == shard::Event::Kind::begin_backward) units.emplace_back(event.unit);
    }
    std::vector<std::string> units;
  } seen;
  job.engine->add_observer(&seen);
  job.step();
  EXPECT_EQ(std::count(seen.units.begin(), seen.units.end(), "layers.0"), 1);
  job.engine->activate(1);
  seen.units.clear();
  job.step();
  for (const char* below : {"layers.0", "layers.1", "layers.2"})
    EXPECT_EQ(std::count(seen.units.begin(), seen.units.end(), below), 0) << below;
  EXPECT_EQ(std::count(seen.units.begin(), seen.units.end(), "layers.3"), 1);
  job.engine->remove_observer(&seen);
}

// Peaks of steady steps, to the byte: one rank of two, whose collectives are copies, because Gloo's
// scratch memory comes and goes by its own clock. The store is counted apart.
TEST(Sets, PeakIsThatOfTheSetAlone) {
  auto& memory = diagnostics::MemoryCounter::install();
  const auto world = comm::World::fake(0, 2);
  const auto peak_of = [&](Job& job) {
    for (int i = 0; i < 2; ++i) job.step();
    memory.reset_peak();
    job.step();
    return memory.peak_bytes();
  };
  for (const bool mixed : {false, true})
    for (const Strategy strategy : {Strategy::full_shard, Strategy::no_shard}) {
      std::vector<std::int64_t> alone;
      for (const auto& patterns : {kSmall, kLarge}) {
        const std::int64_t before = memory.current_bytes();
        Job job = job_of(world, {{"alone", patterns}}, strategy, mixed);
        alone.push_back(peak_of(job) - before);
      }
      for (const Rest rest : kAllRests) {
        SCOPED_TRACE(str(name_of(strategy), ", ", name_of(rest), mixed ? ", mixed" : ""));
        const std::int64_t before = memory.current_bytes();
        const std::int64_t stored = nn::stored_bytes();
        Job job =
            job_of(world, {{"small", kSmall, rest}, {"large", kLarge, rest}}, strategy, mixed);
        for (int turn = 0; turn < 5; ++turn) {
          const auto set = static_cast<std::size_t>(turn % 2);
          memory.reset_peak();
          const std::int64_t at_switch = memory.current_bytes();
          job.engine->activate(set);
          if (rest != Rest::keep) {  // never both sets' states
            const std::int64_t largest = std::max(at_switch, memory.current_bytes());
            EXPECT_LE(memory.peak_bytes() - before, (largest - before) * 1.01 + 4096)
                << "switch " << turn;
          }
          const std::int64_t peak = peak_of(job) - before;
          if (rest == Rest::keep) {
            if (turn > 0) {
              EXPECT_GT(peak, alone[set]) << "turn " << turn;
            }
          } else {
            EXPECT_LE(peak, alone[set] * 1.01) << "turn " << turn;
          }
          const bool in_store = rest == Rest::offload && turn > 0;
          EXPECT_EQ(nn::stored_bytes() > stored, in_store || (mixed && rest == Rest::offload) ||
                                                     (mixed && rest == Rest::drop && turn == 0))
              << "turn " << turn;
        }
      }
    }
}

// ---- sets that nobody announced ----

void check_set_trainable() {
  const auto world = test::join_world();
  // The last set takes a part of a group, which the first goes on with as it was.
  const std::vector<std::vector<std::string>> turns{{"*.adapter.*"},
                                                    {"layers.1.*"},
                                                    {"*.adapter.*"},
                                                    {"norm.*", "layers.1.adapter.down.*"},
                                                    {"*.adapter.*"}};
  for (const Strategy strategy : {Strategy::full_shard, Strategy::no_shard})
    for (const Rest rest : kAllRests) {
      SCOPED_TRACE(str(name_of(strategy), ", ", name_of(rest)));
      const auto run = [&](bool announced) {
        std::vector<ParameterSet> sets{{"first", turns[0], rest}};
        if (announced) {
          sets.push_back({"second", turns[1], rest});
          sets.push_back({"third", turns[3], rest});
        }
        Job job = job_of(world, sets, strategy, false);
        optim::Ema ema(*job.engine, 0.5);
        const std::vector<std::size_t> order{0, 1, 0, 2, 0};
        for (std::size_t turn = 0; turn < turns.size(); ++turn) {
          if (announced) {
            job.engine->activate(order[turn]);
          } else if (turn > 0) {
            const std::size_t set = job.engine->set_trainable(turns[turn], {.rest = rest});
            EXPECT_EQ(set, order[turn]);
            if (set == job.optimizers.size())
              job.optimizers.push_back(
                  std::make_unique<optim::AdamW>(*job.engine, optim::AdamWOptions{}, set));
          }
          for (int step = 0; step < 2; ++step) {
            job.step();
            ema.update();
          }
        }
        std::map<std::string, at::Tensor> weights;
        for (const auto& p : job.engine->plan().parameters)
          weights[p.name] = job.engine->full_parameter(p.name);
        std::map<std::string, double> averages;  // over what this rank owns
        for (std::size_t g = 0; g < job.engine->trainable_groups().size(); ++g) {
          const shard::FlatGroup& group = *job.engine->trainable_groups()[g];
          at::Tensor whole = job.engine->trainable_groups()[g]->gather_slice(ema.slice(g));
          for (std::size_t i = 0; i < group.plan().parameters.size(); ++i)
            averages[group.parameter(i).name] =
                whole.narrow(0, group.plan().layout.offset(i), group.plan().layout.numel(i))
                    .to(at::kDouble)
                    .square()
                    .sum()
                    .item<double>();
        }
        return std::pair(weights, averages);
      };
      const auto [expected, expected_averages] = run(true);
      const auto [found, found_averages] = run(false);
      for (const auto& [name, weight] : expected) EXPECT_TRUE(found.at(name).equal(weight)) << name;
      for (const auto& [name, average] : expected_averages)
        EXPECT_NEAR(found_averages.at(name), average, 1e-9 * average) << name;
    }
}
TEST_RANKS(Sets, SetTrainableEqualsAnnouncedSetsOnOneRank, 1) { check_set_trainable(); }
TEST_RANKS(Sets, SetTrainableEqualsAnnouncedSetsOnThreeRanks, 3) { check_set_trainable(); }

TEST_RANKS(Sets, SetTrainableAfterRequiresGradOfTheModel, 2) {
  const auto world = test::join_world();
  auto model = std::make_shared<models::Transformer>(kSize);
  nn::set_trainable(*model, {"norm.*"});
  shard::ShardOptions options;
  options.world = world;
  const auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
  const at::Tensor before = engine->full_parameter("layers.2.norm1.weight");
  EXPECT_EQ(engine->set_trainable({"layers.2.norm1.*"}), 1);
  EXPECT_TRUE(engine->full_parameter("layers.2.norm1.weight").equal(before));
  EXPECT_EQ(engine->set_trainable({"norm.*"}), 0);
  EXPECT_THROW(engine->set_trainable({"layres.*"}), ConfigError);
}

// Stored in bf16 while frozen: the masters come from the file, not from what was rounded.
TEST_RANKS(Sets, MastersAreReadAgain, 2) {
  const auto world = test::join_world();
  const std::string path = str(::testing::TempDir(), "reread_", ::getpid(), ".safetensors");
  models::Transformer written(kSize);
  nn::materialize(written, 11);
  std::map<std::string, at::Tensor> tensors;
  SafetensorsWriter writer(path);
  for (const auto& p : nn::named_parameters(written)) {
    tensors[p.name] = p.tensor.detach().contiguous();
    writer.declare(p.name, DType::f32, p.tensor.sizes().vec());
  }
  for (const auto& [name, value] : tensors)
    writer.write(name, {static_cast<const std::byte*>(value.const_data_ptr()), value.nbytes()});
  writer.finish();
  const auto source = open_tensors(path);
  for (const Rest rest : kAllRests)
    for (const bool reread : {false, true}) {
      auto model = std::make_shared<models::Transformer>(kSize);
      shard::ShardOptions options;
      options.world = world;
      options.trainable = {{"norm.*"}};
      options.mixed_precision.param = at::kBFloat16;
      options.source = source.get();
      const auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
      engine->set_trainable({"layers.1.*"}, {.rest = rest, .reread = reread});
      for (const auto& [name, tensor] : tensors) {
        const at::Tensor exact = tensor.to(world->device());
        const bool rounded =
            !name.starts_with("norm.") && !(reread && name.starts_with("layers.1."));
        EXPECT_TRUE(engine->full_parameter(name)
                        .to(at::kFloat)
                        .equal(rounded ? exact.to(at::kBFloat16).to(at::kFloat) : exact))
            << name << ", " << name_of(rest) << (reread ? ", read again" : "");
      }
    }
}

TEST_RANKS(Sets, RanksWithOtherPatternsFailTogether, 2) {
  const auto world = test::join_world();
  Job job =
      job_of(world, {{"a", {"layers.0.*"}}, {"b", {"layers.1.*"}}}, Strategy::full_shard, false);
  // One of them names a set that is known, the other a new one.
  EXPECT_THROW(job.engine->set_trainable({world->rank() == 0 ? "layers.1.*" : "layers.2.*"}),
               ConfigError);
}

// Containers that cannot be intercepted are followed by their storages, which a switch may replace.
TEST_RANKS(Sets, WatchedModulesSwitchToo, 2) {
  const auto world = test::join_world();
  for (const Rest rest : kAllRests) {
    at::manual_seed(3);
    torch::nn::Sequential model(torch::nn::Linear(6, 6), torch::nn::Linear(6, 6));
    model->to(world->device());
    shard::ShardOptions options;
    options.world = world;
    options.watch_operators = true;
    options.mixed_precision.param = at::kBFloat16;
    options.sets = {{"a", {"0.*"}, rest}, {"b", {"1.*"}, rest}};
    const auto engine = shard::fully_shard(model.ptr(), {.units = {"Linear"}}, options);
    Optimizers optimizers = optimizers_of(*engine);
    for (int step = 0; step < 8; ++step) {
      if (step < 6) {
        engine->activate(static_cast<std::size_t>(step % 2));
      } else if (step == 6) {
        const std::size_t set = engine->set_trainable({"*.bias"}, {.rest = rest});
        optimizers.push_back(std::make_unique<optim::AdamW>(*engine, optim::AdamWOptions{}, set));
      }
      const at::Tensor x = at::ones({3, 6}, at::TensorOptions().device(world->device()));
      model->forward(x.to(at::kBFloat16)).square().mean().backward();
      const std::size_t active = engine->active_set();
      EXPECT_EQ(engine->full_gradient("0.bias").defined(), active != 1) << "step " << step;
      EXPECT_EQ(engine->full_gradient("1.weight").defined(), active == 1) << "step " << step;
      EXPECT_TRUE(engine->agree().finite);
      optimizers[active]->step(1e-2);
      engine->clear_gradients();
      EXPECT_EQ(engine->memory().pool_used, 0);
    }
  }
}

TEST_RANKS(Sets, RanksThatSwitchDifferentlyAreFound, 2) {
  const auto world = test::join_world();
  Job job =
      job_of(world, {{"a", {"layers.0.*"}}, {"b", {"layers.1.*"}}}, Strategy::full_shard, false);
  job.step();
  if (world->rank() == 1) job.engine->activate(1);
  models::next_token_loss(nn::call(*job.model, job.ids), job.ids);
  EXPECT_THROW(job.engine->agree(), ShardError);
}

TEST_RANKS(Sets, AveragesOfARestingSetDoNotMove, 1) {
  const auto world = test::join_world();
  for (const Rest rest : kAllRests)
    for (const bool mixed : {false, true}) {
      Job job = job_of(world, {{"a", {"layers.0.*"}, rest}, {"b", {"layers.1.*"}, rest}},
                       Strategy::full_shard, mixed);
      optim::Ema ema(*job.engine, 0.5);
      const auto average = [&](std::size_t g) { return ema.slice(g).cpu().clone(); };
      job.step();
      ema.update();
      const at::Tensor first = average(0), second = average(1);
      job.engine->activate(1);
      job.step();
      ema.update();
      EXPECT_TRUE(average(0).equal(first));
      EXPECT_FALSE(average(1).equal(second));
      const at::Tensor moved = average(1);
      {
        const optim::Ema::InPlace in_place(ema);
        EXPECT_TRUE(
            job.engine->trainable_groups()[0]->slice().to(at::kFloat).cpu().allclose(first, 1e-2));
      }
      EXPECT_TRUE(average(0).equal(first));
      EXPECT_TRUE(average(1).equal(moved));
    }
}

// Moments and averages are needed at the update: until backward they only have their place.
TEST_RANKS(Sets, StateComesBackBehindTheFirstBackward, 2) {
  const auto world = test::join_world();
  for (const bool mixed : {false, true}) {
    Job job = job_of(world, {{"small", kSmall, Rest::offload}, {"large", kLarge, Rest::offload}},
                     Strategy::full_shard, mixed);
    const optim::AdamW &small = *job.optimizers[0], &large = *job.optimizers[1];
    optim::Ema ema(*job.engine, 0.5);
    const auto moments = [&] {
      std::vector<at::Tensor> copies;
      for (std::size_t g = 0; g < job.engine->trainable_groups().size(); ++g)
        for (const auto& slice : small.state_slices(g))
          copies.push_back(slice.values.cpu().clone());
      return copies;
    };
    job.step();
    const std::vector<at::Tensor> learnt = moments();
    const std::int64_t bytes = small.state_bytes();
    job.engine->activate(1);
    EXPECT_EQ(large.due_bytes(), 0) << "a set that never trained has nothing to bring back";
    job.step();
    job.engine->activate(0);
    for (int pass = 0; pass < 2; ++pass) {  // a forward alone brings nothing back
      EXPECT_EQ(small.due_bytes(), bytes);
      EXPECT_EQ(small.stored_bytes(), bytes);
      EXPECT_EQ(small.state_bytes(), bytes);
      EXPECT_EQ(ema.due_bytes(), bytes / 2);
      const at::AutoGradMode grad_off(false);
      nn::call(*job.model, job.ids);
    }
    // A set that does not train in its turn goes as it came.
    job.engine->activate(1);
    EXPECT_EQ(small.state_bytes(), 0);
    EXPECT_EQ(small.stored_bytes(), bytes);
    job.engine->activate(0);
    models::next_token_loss(nn::call(*job.model, job.ids), job.ids).backward();
    EXPECT_EQ(small.due_bytes(), 0);
    EXPECT_EQ(ema.due_bytes(), 0);
    // Until somebody works with them they are in the store too, for who must not wait.
    EXPECT_EQ(small.stored_bytes(), bytes);
    for (std::size_t g = 0, i = 0; g < job.engine->trainable_groups().size(); ++g)
      for (const auto& slice : small.held_slices(g)) {
        EXPECT_TRUE(slice.values.is_cpu());
        EXPECT_TRUE(slice.values.equal(learnt[i++]));
      }
    EXPECT_EQ(small.stored_bytes(), bytes);
    const std::vector<at::Tensor> found = moments();
    EXPECT_EQ(small.stored_bytes(), 0);
    ASSERT_EQ(found.size(), learnt.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(learnt[i]));
    job.engine->clear_gradients();
    // Who reads before that has them at once.
    job.engine->activate(1);
    job.engine->activate(0);
    EXPECT_EQ(small.due_bytes(), bytes);
    EXPECT_TRUE(moments()[0].equal(learnt[0]));
    EXPECT_EQ(small.due_bytes(), 0);
  }
}

TEST_RANKS(Sets, WrongUseIsSaid, 1) {
  const auto world = test::join_world();
  Job job =
      job_of(world, {{"a", {"layers.0.*"}}, {"b", {"layers.1.*"}}}, Strategy::full_shard, false);
  EXPECT_THROW(job.optimizers[1]->step(1e-3), ShardError);
  EXPECT_THROW(optim::AdamW(*job.engine, {}, 2), ConfigError);
  EXPECT_THROW(job.engine->set_trainable({}), ConfigError);
  EXPECT_THROW(job.engine->set_trainable({"layers.2.*"}, {.reread = true}), ConfigError);
  {
    optim::Ema ema(*job.engine, 0.5);
    const optim::Ema::InPlace in_place(ema);
    EXPECT_THROW(job.engine->activate(1), ShardError);
  }
  EXPECT_THROW(job.engine->activate(2), ShardError);
  const at::Tensor loss = models::next_token_loss(nn::call(*job.model, job.ids), job.ids);
  EXPECT_THROW(job.engine->activate(1), ShardError);
}

}  // namespace
}  // namespace floe::sets_test
