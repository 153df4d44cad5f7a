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
#include "floe/optim/ema.h"
#include "floe/optim/optimizers/sgd.h"
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

// In fp8, but too narrow to be multiplied so, while it is frozen.
bool is_only_stored(const nn::NamedParameter& p) {
  const bool adapter = p.name.find(".adapter.") != std::string::npos && p.tensor.dim() == 2;
  return p.name == "head.weight" || (adapter && !p.tensor.requires_grad());
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

using Values = std::map<std::string, at::Tensor>;

// One process whose frozen matrices are the same codes; it computes the ranks' batches in turn, and
// those of several passes one after the other.
class Reference {
 public:
  // `values`: instead of those that the model begins with.
  explicit Reference(at::Device device, const std::vector<std::string>& trainable = kTrainable,
                     const Values& values = {})
      : model_(std::make_shared<models::Transformer>(kSize)) {
    nn::materialize(*model_, kSeed, device);
    nn::set_trainable(*model_, trainable);
    const at::NoGradGuard no_grad;
    for (auto& p : nn::named_parameters(*model_)) {
      if (const auto own = values.find(p.name); own != values.end())
        p.tensor.set_data(own->second.to(device));
      if (is_multiplied(p.name) && !p.tensor.requires_grad()) {
        const auto rows = kernels::to_eight_bit(p.tensor.detach().cpu(), kFp8);
        p.tensor.set_data(rows.codes.view(kFp8).to(device));
        nn::attach_codes(p.tensor, {rows.scales.to(device), {}});
      } else {
        if (is_only_stored(p))
          p.tensor.set_data(test::through_eight_bit(p.tensor.detach().cpu(), kFp8).to(device));
        p.tensor.set_data(p.tensor.detach().to(computed_in()));
      }
    }
  }

  struct Result {
    std::vector<double> losses;  // as the batches
    Values gradients;            // the mean over ranks of the sums over passes
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

// ---- sets that rest in 8 bits ----

// Upper and lower layers in turn, their masters in the host store meanwhile; layer 1 never trains.
// Rows of 32 are cut by most slices, on three ranks in every third of them.
const std::vector<std::vector<std::string>> kInTurn{{"layers.2.*", "norm.*"}, {"layers.0.*"}};
constexpr double kRate = 0.05;

shard::ShardOptions in_turn(std::shared_ptr<comm::World> world,
                            shard::Rest rest = shard::Rest::offload) {
  auto options = options_for(std::move(world));
  options.trainable.reset();
  options.sets = {{"upper", kInTurn[0], rest}, {"lower", kInTurn[1], rest}};
  return options;
}

// What a group that rests has instead of these values: codes of whole rows.
void expect_codes_of(shard::FlatGroup& group, const Values& values) {
  const kernels::EightBitSlices& layout = group.plan().eight_bit_slices;
  const at::Tensor stored = group.gather_stored().cpu();
  const at::Tensor codes = layout.all_codes(stored), scales = layout.all_scales(stored);
  for (std::size_t i = 0; i < group.plan().parameters.size(); ++i) {
    const std::string& name = group.parameter(i).name;
    const auto want = kernels::to_eight_bit(values.at(name).cpu(), kFp8);
    const auto& matrix = layout.matrices[i];
    EXPECT_TRUE(codes.narrow(0, matrix.offset, want.codes.numel()).equal(want.codes.view({-1})))
        << name;
    EXPECT_TRUE(scales.narrow(0, matrix.rows_before, want.scales.numel()).equal(want.scales))
        << name;
  }
}

// What trains now has values, every other matrix codes; masters are what they were.
void expect_set(shard::Engine& engine, std::size_t set, const Values& masters) {
  int resting = 0;
  for (const auto& group : engine.groups()) {
    Values own;
    for (std::size_t i = 0; i < group->plan().parameters.size(); ++i) {
      const auto& parameter = group->parameter(i);
      const bool codes = is_multiplied(parameter.name) && !parameter.trains_in(set);
      EXPECT_EQ(group->plan().multiplied, codes) << parameter.name;
      EXPECT_EQ(group->leaf(i).scalar_type(), codes ? kFp8 : computed_in()) << parameter.name;
      EXPECT_EQ(nn::codes_of(group->leaf(i)) != nullptr, codes) << parameter.name;
      EXPECT_EQ(group->leaf(i).requires_grad(), parameter.trains_in(set)) << parameter.name;
      if (!parameter.trainable) continue;
      own[parameter.name] = engine.full_parameter(parameter.name);
      EXPECT_EQ(own[parameter.name].scalar_type(), at::kFloat) << "masters, wherever they are";
      EXPECT_TRUE(own[parameter.name].equal(masters.at(parameter.name))) << parameter.name;
    }
    if (!group->plan().trainable || !group->plan().multiplied) continue;
    expect_codes_of(*group, own);
    resting += static_cast<int>(group->plan().parameters.size());
    EXPECT_GT(group->stored_bytes(), 0) << group->name();
  }
  EXPECT_EQ(resting, 4) << "of the other set";
}

void sets_in_turn_are_one_process(const std::vector<Way>& ways) {
  const auto world = test::join_world();
  const bool exact = world->device().is_cpu();
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    auto options = in_turn(world);
    options.strategy = way.strategy;
    options.hybrid_shard_size = 2;
    options.frozen.sharding = way.sharding;
    options.frozen.residency = way.residency;
    if (way.checkpointed) options.activation_checkpointing = {"DecoderLayer"};
    const auto model = std::make_shared<models::Transformer>(kSize);
    const auto engine = shard::fully_shard(model, kPolicy, options);
    optim::Sgd upper(*engine, {}, 0), lower(*engine, {}, 1);
    Values masters;
    for (const auto& p : engine->plan().parameters)
      if (p.trainable) masters[p.name] = engine->full_parameter(p.name).clone();
    test::CountingObserver counts;
    engine->add_observer(&counts);
    for (int step = 0; step < 6; ++step) {
      const auto set = static_cast<std::size_t>(step / 2 % 2);
      engine->activate(set);
      if (step % 2 == 0) engine->reset_memory_peaks();
      expect_set(*engine, set, masters);
      EXPECT_EQ(engine->memory().resting_slices, engine->held().resting_slices);
      counts.clear();
      std::vector<at::Tensor> batches;
      for (int rank = 0; rank < world->size(); ++rank) batches.push_back(ids_of(step, rank));
      Reference reference(world->device(), kInTurn[set], masters);
      const at::Tensor& ids = batches[static_cast<std::size_t>(world->rank())];
      const at::Tensor loss = models::next_token_loss(nn::call(*model, ids), ids);
      loss.backward();
      EXPECT_TRUE(engine->agree().finite);
      const Reference::Result want = reference.run(batches);
      expect_same(*engine, want, loss.item<double>(), world->rank());
      (set == 0 ? upper : lower).step(kRate);
      engine->clear_gradients();
      for (const auto& [name, gradient] : want.gradients) {
        const at::Tensor updated = masters[name] - kRate * gradient;
        masters[name] = engine->full_parameter(name).clone();
        EXPECT_LE((masters[name] - updated).abs().max().item<double>(), exact ? 1e-6 : 2e-3)
            << name;  // a code more or less is another number: the next step starts from the same
      }
      if (step % 2 == 0) continue;  // the first of a turn learns the order
      const shard::MovedBytes moved = engine->moved();
      EXPECT_EQ(counts.gathers().count, moved.gathers);
      EXPECT_EQ(counts.gathers().bytes, moved.gathered);
      EXPECT_LE(engine->memory().pool_peak, engine->held().pool);
    }
    engine->verify_copies();
    engine->remove_observer(&counts);
  }
}
const std::vector<Way> kTurns{
    {.name = "full_shard"},
    {.name = "shard_grad_op", .strategy = Strategy::shard_grad_op},
    {.name = "no_shard", .strategy = Strategy::no_shard},
    {.name = "resident", .residency = Residency::resident},
    {.name = "checkpointed", .checkpointed = true},
};
TEST_RANKS(Resting, OneRank, 1) { sets_in_turn_are_one_process(kTurns); }
TEST_RANKS(Resting, TwoRanks, 2) { sets_in_turn_are_one_process(kTurns); }
TEST_RANKS(Resting, ThreeRanks, 3) { sets_in_turn_are_one_process(kTurns); }
TEST_RANKS(Resting, FourRanks, 4) {
  sets_in_turn_are_one_process({
      {.name = "full_shard"},
      {.name = "hybrid", .strategy = Strategy::hybrid},
      {.name = "frozen over 2", .sharding = shard::FrozenSharding::node},
  });
}

struct LongRow : nn::Module {
  LongRow() {
    other = child<nn::Linear>("other", 6, 4);
    row = child<nn::Linear>("row", 2304, 1, /*bias=*/false);
  }
  nn::Ptr<nn::Linear> other, row;
};

// A row that is longer than a slice has its largest magnitude on any of the ranks.
TEST_RANKS(Resting, ARowLongerThanASlice, 4) {
  const auto world = test::join_world();
  for (const int largest : {0, 700, 1500, 2303}) {
    const auto model = std::make_shared<LongRow>();
    shard::ShardOptions options;
    options.world = world;
    options.frozen.dtype = kFp8;
    options.sets = {{"other", {"other.*"}, shard::Rest::offload},
                    {"row", {"row.*"}, shard::Rest::offload}};
    const auto engine = shard::fully_shard(model, {.units = {"Linear"}}, options);
    for (const auto& group : engine->groups()) {
      if (group->parameter(0).name != "row.weight") continue;
      Values values{{"row.weight", at::linspace(-1, 1, 2304).view({1, 2304}).clone()}};
      values["row.weight"][0][largest] = -7;
      const at::AutoGradMode grad_off(false);
      const auto& layout = group->plan().layout;
      const at::Tensor padded = at::zeros({layout.padded_numel()});
      padded.narrow(0, 0, layout.numel()).copy_(values["row.weight"].view({-1}));
      group->values().copy_(
          padded.narrow(0, world->rank() * layout.slice_numel(), layout.slice_numel()));
      group->values_changed();
      expect_codes_of(*group, values);
    }
  }
}

// Averages take the place of what rests too, in 8 bits, and leave nothing behind.
TEST_RANKS(Resting, AveragesInPlace, 2) {
  const auto world = test::join_world();
  for (const Strategy strategy : {Strategy::full_shard, Strategy::no_shard}) {
    auto options = in_turn(world);
    options.strategy = strategy;
    const auto model = std::make_shared<models::Transformer>(kSize);
    const auto engine = shard::fully_shard(model, kPolicy, options);
    optim::Sgd upper(*engine, {}, 0);
    optim::Ema averages(*engine, 0.5);
    for (int step = 0; step < 2; ++step) {
      const at::Tensor ids = ids_of(step, world->rank());
      models::next_token_loss(nn::call(*model, ids), ids).backward();
      EXPECT_TRUE(engine->agree().finite);
      upper.step(1.0);
      averages.update();
      engine->clear_gradients();
    }
    engine->activate(1);
    const auto groups = engine->trainable_groups();
    const auto each_resting = [&](auto&& visit) {
      for (std::size_t g = 0; g < groups.size(); ++g)
        if (groups[g]->plan().multiplied) visit(*groups[g], g);
    };
    const at::Tensor ids = ids_of(7, world->rank());
    const auto loss = [&] {
      const at::NoGradGuard no_grad;
      return models::next_token_loss(nn::call(*model, ids), ids).item<double>();
    };
    const double before = loss();
    std::vector<at::Tensor> stored;
    each_resting([&](shard::FlatGroup& group, std::size_t) {
      stored.push_back(group.gather_stored().clone());
    });
    ASSERT_EQ(stored.size(), 1U);
    {
      const optim::Ema::InPlace in_place(averages);
      each_resting([&](shard::FlatGroup& group, std::size_t g) {
        const at::Tensor whole = group.gather_slice(averages.held(g));
        Values values;
        for (std::size_t i = 0; i < group.plan().parameters.size(); ++i)
          values[group.parameter(i).name] =
              whole.narrow(0, group.plan().layout.offset(i), group.plan().layout.numel(i))
                  .view(group.parameter(i).shape);
        expect_codes_of(group, values);
        EXPECT_FALSE(group.gather_stored().equal(stored[0])) << "averages are other numbers";
      });
      EXPECT_NE(loss(), before);
    }
    each_resting([&](shard::FlatGroup& group, std::size_t) {
      EXPECT_TRUE(group.gather_stored().equal(stored[0]));
    });
    EXPECT_EQ(loss(), before);
  }
}

// Where masters stay on the device, are forgotten, or are with all slices in host memory, and where
// nothing ever rests, what some set trains is values.
TEST(Resting, NeedsMastersInTheStore) {
  models::Transformer model(kSize);
  const auto coded = [&](const shard::ShardOptions& options) {
    auto plan = shard::make_plan(model, kPolicy, options, 2);
    int count = 0;
    for (std::size_t set = 0; set < plan.sets.size(); ++set) {
      plan.activate(set);
      for (const auto& group : plan.groups) count += group.trainable && group.multiplied;
    }
    return count;
  };
  EXPECT_EQ(coded(in_turn(nullptr)), 2);
  EXPECT_EQ(coded(in_turn(nullptr, shard::Rest::keep)), 0);
  EXPECT_EQ(coded(in_turn(nullptr, shard::Rest::drop)), 0);
  auto options = in_turn(nullptr);
  options.cpu_offload = true;
  EXPECT_EQ(coded(options), 0);
  options = in_turn(nullptr);
  options.sets[0].rest = shard::Rest::keep;
  EXPECT_EQ(coded(options), 1);
  options.sets.pop_back();
  options.sets[0].rest = shard::Rest::offload;
  EXPECT_EQ(coded(options), 0);
  EXPECT_EQ(shard::make_plan(model, kPolicy, options, 2).groups.size(), [&] {
    auto alone = options;
    alone.sets[0].rest = shard::Rest::keep;
    return shard::make_plan(model, kPolicy, alone, 2).groups.size();
  }());
}

// A set that comes later may keep what rests in 8 bits, or be itself what rests so.
TEST_RANKS(Resting, SetsThatComeLater, 2) {
  const auto world = test::join_world();
  const auto model = std::make_shared<models::Transformer>(kSize);
  const auto engine = shard::fully_shard(model, kPolicy, in_turn(world));
  Values before;
  for (const auto& p : engine->plan().parameters)
    if (p.trainable) before[p.name] = engine->full_parameter(p.name).clone();
  const auto train_once = [&](int step) {
    const at::Tensor ids = ids_of(step, world->rank());
    models::next_token_loss(nn::call(*model, ids), ids).backward();
    EXPECT_TRUE(engine->agree().finite);
    engine->clear_gradients();
  };
  train_once(0);
  // Divides a group that rests in 8 bits, whose masters need no file.
  engine->set_trainable({"layers.0.up.*"}, {.rest = shard::Rest::keep});
  train_once(1);
  for (const auto& [name, value] : before)
    EXPECT_TRUE(engine->full_parameter(name).equal(value)) << name;
  int coded = 0;
  for (const auto& group : engine->groups()) {
    if (!group->plan().trainable || !group->plan().multiplied) continue;
    expect_codes_of(*group, before);
    coded += static_cast<int>(group->plan().parameters.size());
  }
  EXPECT_EQ(coded, 3 + 4) << "of layers 0 and 2, but for the one that trains";
  engine->activate(1);
  train_once(2);
  for (const auto& [name, value] : before)
    EXPECT_TRUE(engine->full_parameter(name).equal(value)) << name;
}

}  // namespace
}  // namespace floe::fp8_test
