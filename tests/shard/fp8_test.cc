// FrozenOptions::compute fp8: frozen matrices that are multiplied in 8 bits. Which they are, what
// is held, gathered and moved for it, that every strategy and number of ranks computes what one
// process with the same codes does, sets, and what is refused. The products themselves are in
// tests/nn/linear_test.cc.
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "floe/core/str.h"
#include "floe/io/safetensors/safetensors.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/kernels/eight_bit/fp8_product.h"
#include "floe/models/transformer.h"
#include "floe/nn/layers.h"
#include "floe/nn/products/linear.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"
#include "tests/support/counter.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

namespace floe::fp8_test {
namespace {

using shard::Accumulate;
using shard::Event;
using shard::Residency;
using shard::Strategy;

constexpr auto kFp8 = at::kFloat8_e4m3fn;
// The head has 61 rows: stored in fp8, but not multiplied so.
const models::TransformerSize kSize{
    .vocab = 61, .dim = 32, .layers = 3, .heads = 2, .context = 12, .adapter = 5};
const shard::Policy kPolicy{.units = {"DecoderLayer"}, .lone_unit_numel = 1000};
// Backward comes through layers 1 and 2, and not through layer 0.
const std::vector<std::string> kTrainable{"layers.1.norm1.*", "*.adapter.*", "norm.*"};
constexpr int kSeed = 3;

// fp32 on the CPU, where nothing hides behind bf16; a GPU gives nothing else than bf16.
at::ScalarType computed_in() { return test::device().is_cpu() ? at::kFloat : at::kBFloat16; }

shard::ShardOptions options_for(std::shared_ptr<comm::World> world) {
  shard::ShardOptions options;
  options.world = std::move(world);
  options.trainable = kTrainable;
  options.frozen.compute = kFp8;
  options.mixed_precision.param = computed_in();
  options.mixed_precision.reduce = at::kFloat;
  options.seed = kSeed;
  return options;
}

template <class F>
std::string error_of(F&& run) {
  try {
    run();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing was thrown";
}

bool is_multiplied(const std::string& name) {
  return name.starts_with("layers.") && name.find("adapter") == std::string::npos &&
         name.find("norm") == std::string::npos && name.ends_with(".weight");
}

// ---- the plan ----

TEST(Plan, MultipliesMatricesOfOwnLinearLayersAndNothingElse) {
  models::Transformer model(kSize);
  const auto plan = shard::make_plan(model, kPolicy, options_for(nullptr), 2);
  int multiplied = 0, only_stored = 0;
  for (const auto& group : plan.groups)
    for (const std::size_t p : group.parameters) {
      const auto& parameter = plan.parameters[p];
      EXPECT_EQ(group.multiplied, is_multiplied(parameter.name)) << parameter.name;
      EXPECT_EQ(group.eight_bit(), group.multiplied || parameter.name == "head.weight");
      EXPECT_EQ(group.name.ends_with(" fp8 products"), group.multiplied) << group.name;
      multiplied += group.multiplied;
      only_stored += group.eight_bit() && !group.multiplied;
    }
  EXPECT_EQ(multiplied, 3 * 4);
  EXPECT_EQ(only_stored, 1);
}

TEST(Plan, ForeignLayersKeepValues) {
  struct Mixed : nn::Module {
    Mixed() {
      own = child<nn::Linear>("own", 32, 32);
      foreign =
          register_module("foreign", std::make_shared<nn::Hooked<torch::nn::LinearImpl>>(32, 32));
      last = child<nn::Linear>("last", 32, 16);
    }
    nn::Ptr<nn::Linear> own, last;
    std::shared_ptr<torch::nn::Module> foreign;
  };
  Mixed model;
  auto options = options_for(nullptr);
  options.trainable = {{"last.*"}};
  const auto plan = shard::make_plan(model, {}, options, 2);
  for (const auto& group : plan.groups)
    for (const std::size_t p : group.parameters) {
      const std::string& name = plan.parameters[p].name;
      EXPECT_EQ(group.multiplied, name == "own.weight") << name;
      EXPECT_EQ(group.eight_bit(), name == "own.weight" || name == "foreign.weight") << name;
    }
}

// Half of bf16 is moved; gathered are as many bytes as there are codes, twice as many where
// backward comes through. Scales are 4 bytes a row.
TEST(Plan, CountsBytes) {
  models::Transformer model({.vocab = 512, .dim = 256, .layers = 4, .heads = 8, .adapter = 16});
  auto options = options_for(nullptr);
  options.mixed_precision.param = at::kBFloat16;
  options.trainable = {{"layers.1.adapter.*", "layers.3.*"}};
  for (const int world : {1, 2, 3, 8})
    for (const auto residency : {Residency::sharded, Residency::resident}) {
      options.frozen.residency = residency;
      const auto plan = shard::make_plan(model, kPolicy, options, world);
      auto stored_options = options, plain_options = options;
      stored_options.frozen.compute.reset();
      stored_options.frozen.dtype = kFp8;
      plain_options.frozen.compute.reset();
      const auto stored = shard::make_plan(model, kPolicy, stored_options, world);
      const auto plain = shard::make_plan(model, kPolicy, plain_options, world);
      std::set<bool> both;
      for (const auto& group : plan.groups) {
        if (!group.multiplied) continue;
        both.insert(group.transposed);
        // The adapter stands behind the matrices of its own layer.
        EXPECT_EQ(group.transposed,
                  group.name.starts_with("layers.2") || group.name.starts_with("head"))
            << group.name;
        const std::int64_t n = group.layout.numel(), rows = group.eight_bit_slices.num_rows;
        const std::int64_t copies = group.transposed ? 2 : 1;
        const bool whole = world == 1 || residency == Residency::resident;
        EXPECT_EQ(group.in_place(), whole);
        if (whole) {
          EXPECT_EQ(group.gathered_bytes(), 0);
          EXPECT_EQ(group.staging_bytes(), 0);
          EXPECT_GE(group.slice_bytes(), copies * n + 4 * rows);
          EXPECT_LE(group.slice_bytes(), copies * n + 4 * rows + 256);
        } else {
          EXPECT_GE(group.gathered_bytes(), copies * n + 4 * rows);
          EXPECT_LE(group.gathered_bytes(), copies * n + 4 * rows + 128 * (world + 1));
          EXPECT_EQ(group.moved_bytes(), world * group.slice_bytes());
          EXPECT_EQ(group.staging_bytes(), group.moved_bytes());
          EXPECT_LE(static_cast<double>(group.moved_bytes()),
                    1.03 * static_cast<double>(n) + 256 * world)
              << "half of bf16's 2n";
        }
      }
      EXPECT_EQ(both.size(), 2U) << "with and without backward";
      EXPECT_EQ(plan.moved().gathered, world > 1 && residency == Residency::sharded
                                           ? stored.moved().gathered
                                           : plan.moved().gathered);
      EXPECT_LT(plan.held().frozen_slices, plain.held().frozen_slices);
      EXPECT_LE(static_cast<double>(plan.held().pool),
                1.02 * static_cast<double>(stored.held().pool))
          << "no more than values take, but for scales";
    }
}

TEST(Plan, ASetThatComesThroughLaterIsLaidOutForFromTheStart) {
  models::Transformer model(kSize);
  auto options = options_for(nullptr);
  options.trainable.reset();
  options.sets = {{"late", {"layers.2.adapter.*"}}, {"early", {"layers.0.adapter.*"}}};
  auto plan = shard::make_plan(model, kPolicy, options, 2);
  std::vector<std::int64_t> bytes;
  for (const std::size_t set : {0, 1, 0}) {
    plan.activate(set);
    std::vector<std::int64_t> now;
    for (const auto& group : plan.groups)
      if (group.multiplied) {
        EXPECT_EQ(group.transposed, !group.name.starts_with("layers.0")) << group.name;
        now.push_back(group.gathered_bytes());
      }
    if (!bytes.empty()) {
      EXPECT_EQ(now, bytes);
    }
    bytes = now;
  }
}

TEST(Plan, RefusesWhatCannotBe) {
  models::Transformer model(kSize);
  const auto refusal = [&](auto&& change) {
    auto options = options_for(nullptr);
    change(options);
    return error_of([&] { shard::make_plan(model, kPolicy, options, 2); });
  };
  EXPECT_EQ(
      refusal([](auto& o) { o.frozen.dtype = at::kChar; }),
      "FrozenOptions::compute is fp8, but FrozenOptions::dtype is Char; what is multiplied in "
      "fp8 is stored so: leave one of the two out");
  EXPECT_EQ(refusal([](auto& o) { o.frozen.compute = at::kChar; }),
            "FrozenOptions::compute cannot be Char; choose fp8, or leave it out");
  EXPECT_EQ(refusal([](auto& o) { o.trainable = {{"layers.*"}}; }),
            "FrozenOptions::compute is fp8, but no linear layer of floe's own with sides that are "
            "multiples of 16 is frozen in all phases; freeze some, or leave it out");
  EXPECT_TRUE(refusal([](auto& o) { o.autocast = at::kBFloat16; }).find("autocast") !=
              std::string::npos);
  EXPECT_TRUE(refusal([](auto& o) { o.watch_operators = true; }).find("watched operators") !=
              std::string::npos);
  EXPECT_EQ(refusal([](auto& o) { o.frozen.dtype = kFp8; }), "nothing was thrown");
}

TEST(Plan, ValuesThatAreNotFiniteAreRefused) {
  const auto model = std::make_shared<models::Transformer>(kSize);
  nn::materialize(*model, kSeed);
  for (auto& p : nn::named_parameters(*model))
    if (p.name == "layers.0.up.weight") {
      const at::NoGradGuard no_grad;
      p.tensor[7][4] = std::nan("");
    }
  EXPECT_EQ(
      error_of([&] { shard::fully_shard(model, kPolicy, options_for(comm::World::fake(0, 2))); }),
      "parameter 'layers.0.up.weight' has a value that is not finite in row 7, which 8 bits "
      "cannot hold; repair the weights, or leave FrozenOptions::compute out");
}

TEST(Products, NeedAGpuThatHasThem) {
  const auto why = [](int major, int minor, at::ScalarType dtype = at::kBFloat16) {
    return kernels::why_no_fp8_products("this GPU", major, minor, dtype);
  };
  EXPECT_EQ(why(8, 0),
            "needs a GPU of compute capability 8.9 or later (Ada, Hopper), and this GPU has 8.0");
  EXPECT_TRUE(why(8, 6).ends_with("this GPU has 8.6"));
  EXPECT_TRUE(why(7, 5).ends_with("this GPU has 7.5"));
  for (const auto& [major, minor] : {std::pair(8, 9), {9, 0}, {10, 0}, {12, 0}})
    EXPECT_EQ(why(major, minor), "") << major << "." << minor;
  for (const auto dtype : {at::kFloat, at::kHalf})
    for (const int major : {8, 9})
      EXPECT_EQ(why(major, 0, dtype),
                str("needs mixed_precision.param bf16 on a GPU, whose 8-bit products give nothing "
                    "else, not ",
                    c10::toString(dtype)));
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    EXPECT_EQ(kernels::why_no_fp8_products(at::kCPU, dtype), "") << "emulated there";
}

// ---- ranks ----

// One process whose frozen matrices are the same codes; it computes the ranks' batches in turn, and
// those of several passes one after the other.
class Reference {
 public:
  explicit Reference(at::Device device, const std::vector<std::string>& trainable = kTrainable)
      : model_(std::make_shared<models::Transformer>(kSize)) {
    nn::materialize(*model_, kSeed, device);
    nn::set_trainable(*model_, trainable);
    const at::NoGradGuard no_grad;
    for (auto& p : nn::named_parameters(*model_)) {
      if (is_multiplied(p.name)) {
        const auto rows = kernels::to_eight_bit(p.tensor.detach().cpu(), kFp8);
        p.tensor.set_data(rows.codes.view(kFp8).to(device));
        nn::attach_codes(p.tensor, {rows.scales.to(device), {}});
      } else {
        if (p.name == "head.weight")
          p.tensor.set_data(test::through_eight_bit(p.tensor.detach().cpu(), kFp8).to(device));
        p.tensor.set_data(p.tensor.detach().to(computed_in()));
      }
    }
  }

  struct Result {
    std::vector<double> losses;                   // as the batches
    std::map<std::string, at::Tensor> gradients;  // the mean over ranks of the sums over passes
  };
  Result run(const std::vector<at::Tensor>& batches, int passes = 1) {
    const double ranks = static_cast<double>(batches.size()) / passes;
    Result result;
    for (const at::Tensor& ids : batches) {
      const at::Tensor loss = models::next_token_loss(nn::call(*model_, ids), ids);
      result.losses.push_back(loss.item<double>());
      loss.backward();
      for (auto& p : nn::named_parameters(*model_)) {
        if (!p.tensor.grad().defined()) continue;
        const at::Tensor grad = p.tensor.grad().to(at::kFloat) / ranks;
        auto& sum = result.gradients[p.name];
        sum = sum.defined() ? sum + grad : grad;
        p.tensor.mutable_grad().reset();
      }
    }
    return result;
  }

 private:
  std::shared_ptr<models::Transformer> model_;
};

at::Tensor ids_of(int step, int rank, int pass = 0) {
  at::manual_seed(100 * step + 10 * pass + rank);
  return at::randint(0, kSize.vocab, {2, 12}, at::kLong).to(test::device());
}

// `batch`: whose loss that is, as the reference was given them.
void expect_same(shard::Engine& engine, const Reference::Result& want, double loss, int batch) {
  const bool exact = test::device().is_cpu();
  EXPECT_NEAR(loss, want.losses[static_cast<std::size_t>(batch)], exact ? 1e-6 : 1e-2);
  for (const auto& [name, gradient] : want.gradients) {
    const at::Tensor got = engine.full_gradient(name);
    ASSERT_TRUE(got.defined()) << name;
    // Adapters begin at zero, so some gradients are.
    EXPECT_LE((got - gradient).norm().item<double>(),
              (exact ? 1e-5 : 3e-2) * gradient.norm().item<double>())
        << name;
  }
}

struct Way {
  std::string name;
  Strategy strategy = Strategy::full_shard;
  Residency residency = Residency::sharded;
  bool offload = false, checkpointed = false, keep = false;
  shard::FrozenSharding sharding = shard::FrozenSharding::all;
  double budget = 0;  // of Residency::automatic, in what frozen slices take without residents
  int passes = 1;
  std::optional<shard::Accumulate> accumulate{};
};

shard::ShardOptions options_for(const Way& way, const std::shared_ptr<comm::World>& world) {
  auto options = options_for(world);
  options.strategy = way.strategy;
  options.hybrid_shard_size = 2;
  options.frozen.sharding = way.sharding;
  options.cpu_offload = way.offload;
  if (way.checkpointed) options.activation_checkpointing = {"DecoderLayer"};
  options.kept_activations.products = way.keep;
  options.passes_per_update = way.passes;
  options.accumulate = way.accumulate;
  if (way.budget > 0) {
    models::Transformer model(kSize);
    const auto sliced = shard::make_plan(model, kPolicy, options, world->size()).held();
    options.frozen.memory_budget_bytes =
        static_cast<std::int64_t>(way.budget * static_cast<double>(sliced.frozen_slices));
  }
  options.frozen.residency = way.residency;
  return options;
}

// Over how many ranks matrices are sliced, and how many hold the same slice.
void expect_slices(const Way& way, const shard::Engine& engine, int world) {
  const bool of_two = entry_of(way.strategy).sliced_over == shard::SlicedOver::neighbours ||
                      way.sharding == shard::FrozenSharding::node;
  const bool whole = way.strategy == Strategy::no_shard || way.residency == Residency::resident;
  const int wanted = whole ? 1 : of_two ? 2 : world;
  std::set<bool> resident;
  for (const auto& group : engine.plan().groups) {
    if (!group.multiplied) continue;
    resident.insert(group.resident);
    if (way.residency == Residency::automatic && group.resident) continue;
    EXPECT_EQ(group.shard_size, wanted) << group.name;
    EXPECT_EQ(group.replicas, world / wanted) << group.name;
  }
  EXPECT_EQ(resident.size(), way.residency == Residency::automatic ? 2U : 1U)
      << "a budget that is enough for some";
}

void every_way_is_one_process(const std::vector<Way>& ways) {
  const auto world = test::join_world();
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    const auto options = options_for(way, world);
    Reference reference(world->device());
    const auto model = std::make_shared<models::Transformer>(kSize);
    const auto engine = shard::fully_shard(model, kPolicy, options);
    expect_slices(way, *engine, world->size());
    test::CountingObserver counts;
    engine->add_observer(&counts);
    for (int step = 0; step < 3; ++step) {
      counts.clear();
      std::vector<at::Tensor> batches;
      at::Tensor loss;
      for (int pass = 0; pass < way.passes; ++pass) {
        for (int rank = 0; rank < world->size(); ++rank)
          batches.push_back(ids_of(step, rank, pass));
        engine->set_gradient_sync(pass + 1 == way.passes);
        const at::Tensor ids = ids_of(step, world->rank(), pass);
        loss = models::next_token_loss(nn::call(*model, ids), ids);
        loss.backward();
      }
      EXPECT_TRUE(engine->agree().finite);
      expect_same(*engine, reference.run(batches, way.passes), loss.item<double>(),
                  (way.passes - 1) * world->size() + world->rank());
      engine->clear_gradients();
      if (step == 0) continue;
      const shard::MovedBytes moved = engine->moved();
      EXPECT_EQ(counts.gathers().count, moved.gathers);
      EXPECT_EQ(counts.gathers().bytes, moved.gathered);
      const auto reduced = counts.of(Event::Kind::reduce),
                 copied = counts.of(Event::Kind::replicate);
      EXPECT_EQ(reduced.count + copied.count, moved.reduce_scatters + moved.all_reduces);
      EXPECT_EQ(reduced.bytes + copied.bytes, moved.reduce_scattered + moved.all_reduced);
      EXPECT_LE(engine->memory().pool_peak, engine->held().pool);
      EXPECT_LE(engine->memory().gradient_pool_peak, engine->held().gradient_buffers);
      if (!way.offload) {
        EXPECT_EQ(engine->memory().frozen_slices, engine->held().frozen_slices);
      }
    }
    engine->verify_copies();
    for (const auto& group : engine->groups())
      for (std::size_t i = 0; i < group->plan().parameters.size(); ++i) {
        const bool codes = group->plan().multiplied;
        EXPECT_EQ(group->leaf(i).scalar_type(), codes ? kFp8 : computed_in());
        EXPECT_EQ(nn::codes_of(group->leaf(i)) != nullptr, codes);
      }
    const at::Tensor value = engine->full_parameter("layers.0.up.weight");
    EXPECT_EQ(value.scalar_type(), computed_in()) << "what the codes stand for";
    engine->remove_observer(&counts);
  }
}

const std::vector<Way> kWays{
    {.name = "full_shard"},
    {.name = "shard_grad_op", .strategy = Strategy::shard_grad_op},
    {.name = "no_shard", .strategy = Strategy::no_shard},
    {.name = "resident", .residency = Residency::resident},
    {.name = "offloaded", .offload = true},
    {.name = "checkpointed", .checkpointed = true},
    {.name = "kept products", .checkpointed = true, .keep = true},
};
const std::vector<Way> kPasses{
    {.name = "3 passes, reduced", .passes = 3, .accumulate = Accumulate::reduced},
    {.name = "3 passes, local", .passes = 3, .accumulate = Accumulate::local},
};
const Way kSomeResident{.name = "some resident", .residency = Residency::automatic, .budget = 2};
TEST_RANKS(Ranks, OneRank, 1) { every_way_is_one_process(kWays); }
TEST_RANKS(Ranks, TwoRanks, 2) {
  every_way_is_one_process(kWays);
  every_way_is_one_process(kPasses);
  every_way_is_one_process({kSomeResident});
}
TEST_RANKS(Ranks, ThreeRanks, 3) {
  every_way_is_one_process({kWays[0], {.name = "resident", .residency = Residency::resident}});
}
TEST_RANKS(Ranks, FourRanks, 4) {
  every_way_is_one_process({
      {.name = "full_shard"},
      {.name = "hybrid", .strategy = Strategy::hybrid},
      {.name = "hybrid_grad_op", .strategy = Strategy::hybrid_grad_op},
      {.name = "hybrid, checkpointed", .strategy = Strategy::hybrid, .checkpointed = true},
      {.name = "hybrid, 3 passes",
       .strategy = Strategy::hybrid,
       .passes = 3,
       .accumulate = Accumulate::reduced},
      {.name = "frozen over 2", .sharding = shard::FrozenSharding::node},
      {.name = "frozen over 2, 3 passes",
       .sharding = shard::FrozenSharding::node,
       .passes = 3,
       .accumulate = Accumulate::local},
      kSomeResident,
  });
}

// A parameter that is released is not read, and the error says why.
TEST_RANKS(Ranks, ReleasedCodesCannotBeRead, 2) {
  const auto world = test::join_world();
  const auto model = std::make_shared<models::Transformer>(kSize);
  const auto engine = shard::fully_shard(model, kPolicy, options_for(world));
  const at::Tensor weight = model->named_parameters()["layers.0.up.weight"];
  const at::Tensor x = at::randn({4, 32}).to(world->device(), computed_in());
  EXPECT_NE(error_of([&] { nn::linear(x, weight); }).find("was read while it is released"),
            std::string::npos);
}

// ---- sets ----

TEST_RANKS(Sets, TakeTurns, 2) {
  const auto world = test::join_world();
  const std::vector<std::vector<std::string>> sets{{"layers.2.norm1.*"}, {"layers.0.norm2.*"}};
  auto options = options_for(world);
  options.trainable.reset();
  options.sets = {{"late", sets[0], shard::Rest::offload}, {"early", sets[1]}};
  const auto model = std::make_shared<models::Transformer>(kSize);
  const auto engine = shard::fully_shard(model, kPolicy, options);
  for (int step = 0; step < 4; ++step) {
    const auto set = static_cast<std::size_t>(step % 2);
    if (engine->active_set() != set) engine->activate(set);
    Reference reference(world->device(), sets[set]);
    const at::Tensor ids = ids_of(step, world->rank());
    const at::Tensor loss = models::next_token_loss(nn::call(*model, ids), ids);
    loss.backward();
    EXPECT_TRUE(engine->agree().finite);
    expect_same(*engine, reference.run({ids_of(step, 0), ids_of(step, 1)}), loss.item<double>(),
                world->rank());
    engine->clear_gradients();
  }
}

// What wakes up leaves 8 bits, with masters from the files; the rest of its group stays.
TEST_RANKS(Sets, WhatWakesUpLeavesEightBits, 2) {
  const auto world = test::join_world();
  const std::string path = str(::testing::TempDir(), "fp8_", ::getpid(), ".safetensors");
  models::Transformer written(kSize);
  nn::materialize(written, kSeed);
  {
    SafetensorsWriter writer(path);
    for (const auto& p : nn::named_parameters(written))
      writer.declare(p.name, DType::f32, p.tensor.sizes().vec());
    for (const auto& p : nn::named_parameters(written))
      writer.write(p.name,
                   {static_cast<const std::byte*>(p.tensor.const_data_ptr()), p.tensor.nbytes()});
    writer.finish();
  }
  const auto source = open_tensors(path);
  for (const auto residency : {Residency::sharded, Residency::resident}) {
    auto options = options_for(world);
    options.source = source.get();
    options.frozen.residency = residency;
    const auto model = std::make_shared<models::Transformer>(kSize);
    const auto engine = shard::fully_shard(model, kPolicy, options);
    EXPECT_EQ(error_of([&] { engine->set_trainable({"layers.0.up.*"}); }),
              "'layers.0.up.weight' is to train, but is stored in 8 bits, which are too few to "
              "start from; set `reread`, so that it is read again from the files");
    engine->set_trainable({"layers.0.up.*"}, {.reread = true});
    EXPECT_TRUE(engine->full_parameter("layers.0.up.weight")
                    .cpu()
                    .equal(written.named_parameters()["layers.0.up.weight"]));
    int multiplied = 0;
    for (const auto& group : engine->groups())
      for (std::size_t i = 0; i < group->plan().parameters.size(); ++i) {
        const std::string& name = group->parameter(i).name;
        const bool codes = is_multiplied(name) && name != "layers.0.up.weight";
        EXPECT_EQ(nn::codes_of(group->leaf(i)) != nullptr, codes) << name;
        EXPECT_EQ(group->leaf(i).scalar_type(), codes ? kFp8 : computed_in()) << name;
        multiplied += codes;
      }
    EXPECT_EQ(multiplied, 3 * 4 - 1);
    const at::Tensor ids = ids_of(0, world->rank());
    models::next_token_loss(nn::call(*model, ids), ids).backward();
    EXPECT_TRUE(engine->agree().finite);
    EXPECT_GT(engine->full_gradient("layers.0.up.weight").norm().item<double>(), 0);
  }
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace floe::fp8_test
