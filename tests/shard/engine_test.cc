// What fully_shard promises besides parity: policies and their errors, first values, tied and
// shared modules, skipped units, foreign modules, mixed precision, files as a source.
#include "floe/shard/engine.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>

#include <filesystem>

#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/io/safetensors/safetensors.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/models/transformer.h"
#include "floe/nn/autocast.h"
#include "floe/nn/call.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/optim/optimizers/sgd.h"
#include "floe/shard/group/fill.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/pass/agreement.h"
#include "tests/support/counter.h"
#include "tests/support/ranks.h"

namespace floe::engine_test {
namespace {

const models::TransformerSize kSize{.vocab = 50, .dim = 16, .layers = 3, .heads = 2, .context = 8};

shard::ShardOptions options_for(std::shared_ptr<comm::World> world) {
  shard::ShardOptions options;
  options.world = std::move(world);
  return options;
}

template <class F>
std::string config_error(F&& f) {
  try {
    f();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

// ---- policies ----

std::string unit_names(const shard::Policy& policy, const shard::ShardOptions& options = {}) {
  models::Transformer model(kSize);
  std::vector<std::string> names;
  for (const auto& unit : shard::make_plan(model, policy, options, 2).units)
    names.push_back(unit.label());
  return join(names, " ");
}

TEST(Policy, ByClassByPatternBySizeAndTogether) {
  EXPECT_EQ(unit_names({.units = {"DecoderLayer"}}), "layers.0 layers.1 layers.2 (root)");
  EXPECT_EQ(unit_names({.units = {"layers.[02]"}}), "layers.0 layers.2 (root)");
  EXPECT_EQ(unit_names({.units = {"layers.1", "Embedding"}}), "embed positions layers.1 (root)");
  EXPECT_EQ(
      unit_names({.units = {"DecoderLayer", "*.attention"}}),
      "layers.0 layers.0.attention layers.1 layers.1.attention layers.2 layers.2.attention (root)");
  // 3264 elements a layer: the layers themselves are the smallest modules that reach 3000.
  EXPECT_EQ(unit_names({.min_unit_numel = 3000}), "layers.0 layers.1 layers.2 (root)");
  EXPECT_EQ(unit_names({.units = {"DecoderLayer"}, .lone_unit_numel = 500}),
            "embed layers.0 layers.1 layers.2 head (root)");
}

TEST(Policy, ThatMatchesNothingIsAnErrorWithNearNames) {
  EXPECT_EQ(
      config_error([] { unit_names({.units = {"DecoderLayers"}}); }),
      "Policy::units: 'DecoderLayers' matches no module; did you mean 'DecoderLayer'? (classes in "
      "this model: Attention, DecoderLayer, Dropout, Embedding, LayerNorm, Linear, List)");
  EXPECT_NE(config_error([] { unit_names({.units = {"layer.*"}}); }).find("did you mean 'layers'"),
            std::string::npos);
  shard::ShardOptions options;
  options.trainable = {{"layers.*", "hed.*"}};
  EXPECT_EQ(config_error([&] { unit_names({}, options); }),
            "ShardOptions::trainable: 'hed.*' matches no parameter; did you mean 'head'?");
  options.trainable.reset();
  options.activation_checkpointing = {"Attentoin"};
  EXPECT_NE(config_error([&] { unit_names({}, options); }).find("did you mean 'Attention'"),
            std::string::npos);
  options.activation_checkpointing.clear();
  options.kept_activations.products = true;
  EXPECT_EQ(config_error([&] { unit_names({}, options); }),
            "ShardOptions::kept_activations says what checkpointed modules keep, but none is "
            "checkpointed; name some in ShardOptions::activation_checkpointing");
  options.kept_activations.products = false;
  options.unit_strategies = {{"DecoderLayr", shard::Strategy::no_shard}};
  EXPECT_NE(config_error([&] {
              unit_names({.units = {"DecoderLayer"}}, options);
            }).find("did you mean 'DecoderLayer'"),
            std::string::npos);
  options.unit_strategies.clear();
  options.strategy = shard::Strategy::hybrid;
  options.hybrid_shard_size = 3;
  EXPECT_NE(config_error([&] { unit_names({}, options); }).find("does not divide the 2 ranks"),
            std::string::npos);
}

TEST(Policy, RanksCompareWhatIsKept) {
  models::Transformer model(kSize);
  shard::ShardOptions options;
  options.activation_checkpointing = {"DecoderLayer"};
  const auto plan = shard::make_plan(model, {.units = {"DecoderLayer"}}, options, 2);
  const auto has = [&](const std::string& line) {
    const auto lines = shard::agreed_lines(plan, options);
    return std::find(lines.begin(), lines.end(), line) != lines.end();
  };
  EXPECT_TRUE(has("kept of checkpointed modules: inputs"));
  options.kept_activations = {.products = true, .in_host = true};
  EXPECT_TRUE(has("kept of checkpointed modules: inputs and products in host memory"));
}

// Of each entry the first ones, whose backward comes last.
TEST(Policy, AShareOfTheNamedModulesIsCheckpointed) {
  models::Transformer model(
      {.vocab = 16, .dim = 8, .layers = 10, .heads = 2, .context = 4, .adapter = 2});
  shard::ShardOptions options;
  options.activation_checkpointing = {"DecoderLayer", "*.adapter"};
  const auto names = [&](double share) {
    options.checkpointed_share = share;
    std::vector<std::string> all;
    for (const auto& one :
         shard::make_plan(model, {.units = {"DecoderLayer"}}, options, 2).checkpointed)
      all.push_back(one.name);
    return all;
  };
  EXPECT_EQ(names(1).size(), 20U);
  EXPECT_EQ(names(0.2), (std::vector<std::string>{"layers.0", "layers.1", "layers.0.adapter",
                                                  "layers.1.adapter"}));
  EXPECT_EQ(names(0.01), (std::vector<std::string>{"layers.0", "layers.0.adapter"}));
  EXPECT_EQ(names(0.7).size(), 14U) << "7 of 10, though 0.7 · 10 may be more than 7";
  EXPECT_EQ(names(0.71).size(), 16U);
  for (const double wrong : {0.0, -0.5, 1.01, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_NE(config_error([&] { names(wrong); }).find("more than 0 and at most 1"),
              std::string::npos);
  EXPECT_EQ(names(1e-9), (std::vector<std::string>{"layers.0", "layers.0.adapter"}));
  EXPECT_NE(config_error([&] { names(0.91); }).find("rounded up, every one"), std::string::npos);
  options.activation_checkpointing = {"layers.0", "layers.7"};
  EXPECT_NE(config_error([&] { names(0.5); }).find("lower it, or leave it out"), std::string::npos);
  options.activation_checkpointing = {"DecoderLayer", "layers.[01]"};
  EXPECT_EQ(names(0.5).size(), 5U) << "each of them once";
  options.activation_checkpointing.clear();
  EXPECT_NE(config_error([&] { names(0.5); }).find("names none"), std::string::npos);

  // Layers below the lowest that trains keep nothing: they do not count.
  options.activation_checkpointing = {"DecoderLayer"};
  options.trainable = {{"layers.6.*", "layers.7.*"}};
  EXPECT_EQ(names(0.5).size(), 8U) << "all but layers 8 and 9 of 6 to 9";
  EXPECT_EQ(names(0.5).back(), "layers.7");
  options.trainable.reset();
  options.sets = {{"upper", {"layers.8.*"}}, {"lower", {"layers.6.*"}}};
  EXPECT_EQ(names(0.5).size(), 8U) << "in any set";
}

TEST(Policy, StrategyPerUnit) {
  models::Transformer model(kSize);
  shard::ShardOptions options;
  options.unit_strategies = {{"layers.0", shard::Strategy::no_shard},
                             {"DecoderLayer", shard::Strategy::shard_grad_op}};
  const auto plan = shard::make_plan(model, {.units = {"DecoderLayer"}}, options, 4);
  EXPECT_EQ(plan.groups[plan.units[0].groups[0]].shard_size, 1);
  EXPECT_EQ(plan.groups[plan.units[1].groups[0]].strategy, shard::Strategy::shard_grad_op);
  EXPECT_EQ(plan.groups[plan.units[3].groups[0]].strategy, shard::Strategy::full_shard);
}

TEST(Layout, SlicesCoverEverythingOnceForAnyWorld) {
  for (int world = 1; world <= 9; ++world) {
    for (const std::int64_t granule : {1, 4, 32}) {
      const shard::FlatLayout layout({7, 1, 64, 3, 0, 20}, world, granule);
      EXPECT_EQ(layout.padded_numel() % world, 0);
      EXPECT_EQ(layout.slice_numel() % granule, 0);
      EXPECT_LT(layout.padded_numel() - layout.numel(), world * granule);
      std::vector<int> seen(95, 0);
      for (int rank = 0; rank < world; ++rank)
        for (const auto& piece : layout.pieces(rank))
          for (std::int64_t i = 0; i < piece.numel; ++i) {
            const auto flat = layout.offset(piece.index) + piece.first + i;
            EXPECT_EQ(flat, rank * layout.slice_numel() + piece.slice_offset + i);
            seen[static_cast<std::size_t>(flat)] += 1;
          }
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 95);
    }
  }
}

// ---- first values ----

std::map<std::string, at::Tensor> all_values(shard::Engine& engine) {
  std::map<std::string, at::Tensor> values;
  for (const auto& p : engine.plan().parameters) values[p.name] = engine.full_parameter(p.name);
  return values;
}

void first_values_do_not_depend_on_the_world() {
  auto world = test::join_world();
  models::Transformer whole(kSize);
  nn::materialize(whole, 42);
  auto model = std::make_shared<models::Transformer>(kSize);
  auto options = options_for(world);
  options.seed = 42;
  auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
  for (const auto& p : nn::named_parameters(whole))
    EXPECT_TRUE(engine->full_parameter(p.name).equal(p.tensor.detach())) << p.name;
}
TEST_RANKS(FirstValues, OneRank, 1) { first_values_do_not_depend_on_the_world(); }
TEST_RANKS(FirstValues, TwoRanks, 2) { first_values_do_not_depend_on_the_world(); }
TEST_RANKS(FirstValues, ThreeRanks, 3) { first_values_do_not_depend_on_the_world(); }
TEST_RANKS(FirstValues, FourRanks, 4) { first_values_do_not_depend_on_the_world(); }

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/floe-engine-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

void write_weights(const std::string& path, models::Transformer& model,
                   const std::string& wrong = "") {
  SafetensorsWriter writer(path);
  const auto parameters = nn::named_parameters(model);
  for (const auto& p : parameters) {
    auto shape = p.tensor.sizes().vec();
    if (p.name == wrong) std::swap(shape[0], shape[1]);
    writer.declare(p.name, DType::f32, shape);
  }
  for (const auto& p : parameters) {
    const at::Tensor value = p.tensor.detach().contiguous();
    writer.write(p.name, {static_cast<const std::byte*>(value.const_data_ptr()), value.nbytes()});
  }
  writer.finish();
}

TEST(FirstValues, ComeFromFilesByteRangesOnly) {
  const Folder folder;
  models::Transformer original(kSize);
  nn::materialize(original, 5);
  write_weights(folder.path + "/w.safetensors", original);
  for (int rank = 0; rank < 4; ++rank) {
    auto source = open_tensors(folder.path + "/w.safetensors");
    auto options = options_for(comm::World::fake(rank, 4));
    options.source = source.get();
    auto model = std::make_shared<models::Transformer>(kSize);
    auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
    const auto held = engine->plan().held();
    EXPECT_LE(source->bytes_read(), static_cast<std::uint64_t>(held.trainable_slices));
    for (const auto& group : engine->groups())
      for (const auto& piece : group->pieces()) {
        const auto& p = group->parameter(piece.index);
        const auto expected = original.named_parameters()[p.name].detach().view({-1});
        EXPECT_TRUE(group->slice()
                        .narrow(0, piece.slice_offset, piece.numel)
                        .equal(expected.narrow(0, piece.first, piece.numel)))
            << p.name;
      }
  }
}

// What one rank reads of this source, from a file that it cannot read to the end.
class BrokenSource : public TensorSource {
 public:
  explicit BrokenSource(const TensorSource& whole) : whole_(whole) {}
  std::vector<std::string> names() const override { return whole_.names(); }
  const TensorInfo* find(const std::string& name) const override { return whole_.find(name); }
  void read(const TensorInfo& tensor, std::int64_t, std::int64_t,
            std::span<std::byte>) const override {
    throw DataError(str("'", tensor.name, "' is cut off"));
  }
  std::uint64_t bytes_read() const override { return 0; }

 private:
  const TensorSource& whole_;
};

// Each of the ranks that hold the same slice reads a part of it; see Note [Copies read together].
void copies_are_read_together(shard::Strategy strategy, int ranks_of_a_copy) {
  const models::TransformerSize size{
      .vocab = 4001, .dim = 64, .layers = 2, .heads = 2, .context = 8};
  const Folder folder;
  models::Transformer original(size);
  nn::materialize(original, 5);
  write_weights(folder.path + "/w.safetensors", original);
  const auto source = open_tensors(folder.path + "/w.safetensors");
  const auto world = comm::World::join();
  shard::ShardOptions options = options_for(world);
  options.strategy = strategy;
  options.hybrid_shard_size = ranks_of_a_copy;
  options.source = source.get();
  const auto model = std::make_shared<models::Transformer>(size);
  const auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
  const std::int64_t copies = world->size() / ranks_of_a_copy;

  constexpr std::int64_t kSmall = 64 << 10;
  std::int64_t most = 0, all = 0;
  for (const auto& group : engine->groups())
    for (const auto& piece : group->pieces()) {
      const std::int64_t bytes = piece.numel * 4;
      all += bytes;
      most += bytes < kSmall ? bytes : bytes / copies + 4;
      const auto& p = group->parameter(piece.index);
      const auto expected = original.named_parameters()[p.name].detach().view({-1});
      EXPECT_TRUE(group->slice()
                      .narrow(0, piece.slice_offset, piece.numel)
                      .equal(expected.narrow(0, piece.first, piece.numel)))
          << p.name;
    }
  EXPECT_LE(source->bytes_read(), static_cast<std::uint64_t>(most));
  EXPECT_LT(source->bytes_read(), static_cast<std::uint64_t>(all) * 3 / 4);

  // A rank that cannot read lets nobody wait.
  const BrokenSource broken(*source);
  const bool fails = world->rank() == 1;
  shard::SharedReads reads;
  for (const auto& group : engine->groups())
    shard::read_group(*group, fails ? static_cast<const TensorSource&>(broken) : *source, reads);
  if (fails)
    EXPECT_THROW(reads.finish(), DataError);
  else
    EXPECT_NO_THROW(reads.finish());
  world->group()->barrier("all have read");
}
TEST_RANKS(FirstValues, TwoCopiesAreReadTogether, 4) {
  copies_are_read_together(shard::Strategy::hybrid, 2);
}
TEST_RANKS(FirstValues, ThreeCopiesAreReadTogether, 3) {
  copies_are_read_together(shard::Strategy::no_shard, 1);
}

TEST(FirstValues, MisshapenTensorsAreReportedByName) {
  const Folder folder;
  models::Transformer original(kSize);
  nn::materialize(original, 5);
  write_weights(folder.path + "/w.safetensors", original, "embed.weight");
  auto source = open_tensors(folder.path + "/w.safetensors");
  auto options = options_for(comm::World::fake(0, 2));
  options.source = source.get();
  auto model = std::make_shared<models::Transformer>(kSize);
  try {
    shard::fully_shard(model, {}, options);
    FAIL() << "no error";
  } catch (const DataError& e) {
    EXPECT_STREQ(
        e.what(),
        "the weights do not fit the model: 'embed.weight' has shape [16, 50] in the file and "
        "[50, 16] in the model");
  }
}

// ---- shapes of models ----

struct Shared : nn::Module {
  Shared() {
    a = child<nn::Linear>("a", 8, 8);
    register_module("again", a.ptr());  // one module under two parents counts once
    b = child<nn::Linear>("b", 8, 8);
  }
  at::Tensor forward(const at::Tensor& x) { return b(a(at::tanh(a(x)))); }
  nn::Ptr<nn::Linear> a, b;
};

TEST(Models, AModuleUnderTwoNamesCountsOnceAndMayRunTwice) {
  auto reference = std::make_shared<Shared>();
  nn::materialize(*reference, 0);
  auto model = std::make_shared<Shared>();
  auto engine =
      shard::fully_shard(model, {.units = {"Linear"}}, options_for(comm::World::fake(0, 1)));
  EXPECT_EQ(engine->plan().parameters.size(), 4U);
  EXPECT_EQ(engine->plan().units.size(), 3U);
  const at::Tensor x = at::randn({3, 8});
  for (int step = 0; step < 2; ++step) {
    nn::call(*reference, x).pow(2).sum().backward();
    nn::call(*model, x).pow(2).sum().backward();
    EXPECT_TRUE(engine->full_gradient("again.weight").equal(reference->a->weight.grad()));
    engine->clear_gradients();
    reference->zero_grad();
  }
}

struct Choosy : nn::Module {
  Choosy() {
    for (int i = 0; i < 3; ++i)
      parts.push_back(child<nn::Linear>("part" + std::to_string(i), 6, 6));
  }
  at::Tensor forward(at::Tensor x, int skipped) {
    for (int i = 0; i < 3; ++i)
      if (i != skipped) x = at::tanh(parts[static_cast<std::size_t>(i)](x));
    return x;
  }
  std::vector<nn::Ptr<nn::Linear>> parts;
};

TEST_RANKS(Models, UnitsMayBeSkippedOnAllRanks, 2) {
  auto world = test::join_world();
  Choosy reference;
  nn::materialize(reference, 1);
  auto model = std::make_shared<Choosy>();
  auto options = options_for(world);
  options.seed = 1;
  auto engine = shard::fully_shard(model, {.units = {"Linear"}}, options);
  optim::AdamW optimizer(*engine, {});
  const at::Tensor x = at::ones({2, 6});
  for (int step = 0; step < 6; ++step) {
    const int skipped = step % 3;
    const auto before = all_values(*engine);
    nn::call(*model, x, skipped).sum().backward();
    EXPECT_TRUE(engine->agree().finite);
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(engine->full_gradient("part" + std::to_string(i) + ".weight").defined(),
                i != skipped);
    optimizer.step(1e-2);
    engine->clear_gradients();
    // Nor does what was gathered ahead, because it came next in the step before, stay.
    EXPECT_EQ(engine->memory().pool_used, 0) << step;
    for (int i = 0; i < 3; ++i) {
      const std::string name = "part" + std::to_string(i) + ".weight";
      EXPECT_EQ(engine->full_parameter(name).equal(before.at(name)), i == skipped) << name;
    }
  }
}

TEST(Models, TiedWeightsAreOneGroupOfTwoUnits) {
  auto size = kSize;
  size.tied = true;
  auto model = std::make_shared<models::Transformer>(size);
  auto engine = shard::fully_shard(model, {.units = {"DecoderLayer", "Embedding", "Linear"}},
                                   options_for(comm::World::fake(0, 2)));
  int tied = 0;
  for (const auto& group : engine->plan().groups)
    if (group.units.size() > 1) {
      tied += 1;
      EXPECT_EQ(group.parameters.size(), 1U);
      EXPECT_EQ(engine->plan().parameters[group.parameters[0]].name, "embed.weight");
    }
  EXPECT_EQ(tied, 1);
}

// ---- mixed precision ----

TEST(Precision, DtypesOfShardsParametersGradientsAndBuffers) {
  auto model = std::make_shared<models::Transformer>(kSize);
  model->register_buffer("table", at::ones({3}, at::kDouble));
  auto options = options_for(comm::World::fake(0, 2));
  options.trainable = {{"layers.1.*"}};
  options.mixed_precision = {at::kBFloat16, at::kFloat, at::kFloat};
  auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
  EXPECT_EQ(model->named_buffers()["table"].scalar_type(), at::kFloat);
  const at::Tensor ids = at::randint(0, 50, {2, 8}, at::kLong);
  models::next_token_loss(nn::call(*model, ids), ids).backward();
  for (const auto& group : engine->groups()) {
    EXPECT_EQ(group->leaf(0).scalar_type(), at::kBFloat16);
    EXPECT_EQ(group->slice().scalar_type(), group->plan().trainable ? at::kFloat : at::kBFloat16);
    EXPECT_EQ(group->gradient().defined(), group->plan().trainable);
    if (group->gradient().defined()) {
      EXPECT_EQ(group->gradient().scalar_type(), at::kFloat);
    }
  }
}

struct OneMatrix : nn::Module {
  OneMatrix() { layer = child<nn::Linear>("layer", 4, 4); }
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  nn::Ptr<nn::Linear> layer;
};

// The gradients of the ranks are 1 and 2^-10, whose sum bf16 cannot hold.
TEST_RANKS(Precision, GradientsAreReducedInADtypeOfTheirOwn, 2) {
  const auto world = test::join_world();
  for (const bool fp32 : {false, true}) {
    auto model = std::make_shared<OneMatrix>();
    auto options = options_for(world);
    options.mixed_precision.param = at::kBFloat16;
    if (fp32) options.mixed_precision.reduce = at::kFloat;
    const auto engine = shard::fully_shard(model, {.units = {"Linear"}}, options);
    const double own = world->rank() == 0 ? 1 : 1.0 / 1024;
    nn::call(*model, at::full({1, 4}, own).to(world->device())).sum().backward();
    const at::Tensor gradient = engine->full_gradient("layer.weight").cpu().to(at::kDouble);
    const double expected = fp32 ? (1 + 1.0 / 1024) / 2 : 0.5;
    EXPECT_TRUE(gradient.equal(at::full({4, 4}, expected, at::kDouble))) << gradient;
  }
}

TEST(Precision, FrozenStorageHasADtypeOfItsOwn) {
  models::Transformer model(kSize);
  shard::ShardOptions options;
  options.trainable = {{"head.weight"}};
  options.frozen.dtype = at::kBFloat16;
  const auto plan = shard::make_plan(model, {}, options, 2);
  for (const auto& group : plan.groups)
    EXPECT_EQ(group.storage_dtype, group.trainable ? at::kFloat : at::kBFloat16);
}

TEST(Precision, AutocastIsASwitchOfItsOwn) {
  auto size = kSize;
  models::Transformer reference(size);
  nn::materialize(reference, 0);
  const at::Tensor ids = at::randint(0, 50, {2, 8}, at::kLong);
  at::Tensor expected;
  {
    const nn::AutocastScope autocast(at::kCPU, at::kBFloat16);
    expected = models::next_token_loss(reference.forward(ids), ids);
  }
  expected.backward();
  for (const bool checkpointed : {false, true}) {
    auto model = std::make_shared<models::Transformer>(size);
    auto options = options_for(comm::World::fake(0, 1));
    options.autocast = at::kBFloat16;
    options.mixed_precision.param =
        at::kFloat;  // explicit: parameters stay fp32 whatever autocast says
    if (checkpointed) options.activation_checkpointing = {"DecoderLayer"};
    auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
    const at::Tensor logits = nn::call(*model, ids);
    EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU)) << "it ends with the forward";
    const at::Tensor loss = models::next_token_loss(logits, ids);
    loss.backward();
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-3);
    EXPECT_EQ(model->named_parameters()["layers.0.up.weight"].scalar_type(), at::kFloat);
    const at::Tensor mine = engine->full_gradient("layers.0.up.weight");
    const at::Tensor theirs = reference.named_parameters()["layers.0.up.weight"].grad();
    EXPECT_LE((mine - theirs).abs().max().item<double>(), 2e-2 * theirs.abs().max().item<double>());
  }
}

// ---- foreign modules ----

torch::nn::TransformerEncoderLayerOptions layer_options() {
  return torch::nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0.0);
}

TEST_RANKS(Foreign, HookedAndWatchedGiveTheSameAsUnsharded, 2) {
  auto world = test::join_world();
  at::manual_seed(3);
  torch::nn::TransformerEncoder plain(
      torch::nn::TransformerEncoderOptions(torch::nn::TransformerEncoderLayer(layer_options()), 3));
  at::manual_seed(3);
  torch::nn::TransformerEncoder watched(
      torch::nn::TransformerEncoderOptions(torch::nn::TransformerEncoderLayer(layer_options()), 3));
  auto options = options_for(world);
  options.watch_operators = true;
  options.trainable = {{"layers.1.*"}};
  for (auto& item : plain->named_parameters())
    item.value().requires_grad_(item.key().starts_with("layers.1."));
  auto engine = shard::fully_shard(watched.ptr(), {.units = {"TransformerEncoderLayer"}}, options);
  test::CountingObserver counts;
  engine->add_observer(&counts);
  optim::Sgd optimizer(*engine, {});
  at::manual_seed(9);  // both ranks see the same data, so the average is each one's gradient
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = at::randn({5, 2, 16});
    const at::Tensor a = plain->forward(x).pow(2).mean(), b = watched->forward(x).pow(2).mean();
    EXPECT_EQ(a.item<double>(), b.item<double>());
    a.backward();
    b.backward();
    EXPECT_TRUE(engine->agree().finite);
    for (auto& item : plain->named_parameters()) {
      const at::Tensor gradient = engine->full_gradient(item.key());
      ASSERT_EQ(gradient.defined(), item.value().requires_grad()) << item.key();
      if (gradient.defined()) {
        EXPECT_TRUE(gradient.equal(item.value().grad())) << item.key();
      }
    }
    optimizer.step(0.1);
    engine->clear_gradients();
    const at::NoGradGuard no_grad;
    for (auto& p : plain->parameters())
      if (p.grad().defined()) {
        p.add_(p.grad(), -0.1);
        p.mutable_grad().reset();
      }
    EXPECT_EQ(engine->memory().pool_used, 0) << "watched units are released after backward";
  }
  EXPECT_GT(counts.gathers().count, 0);
}

TEST(Foreign, AUnitWithoutABoundaryIsRefusedWithTheWayOut) {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  const std::string message = config_error([&] {
    shard::fully_shard(model.ptr(), {.units = {"Linear"}}, options_for(comm::World::fake(0, 2)));
  });
  EXPECT_EQ(message,
            "unit '0' is a foreign Linear without a boundary; make it an nn::Hooked<...>, or set "
            "watch_operators");
}

TEST(Foreign, MemoryOfAForeignModuleIsFreedAsItIsSliced) {
  auto model = std::make_shared<nn::Hooked<torch::nn::LinearImpl>>(64, 64);
  const at::Tensor before = model->weight.detach().clone();
  auto engine = shard::fully_shard(model, {}, options_for(comm::World::fake(1, 4)));
  EXPECT_THROW(model->weight.clone(), std::exception) << "only the slice is left";
  const auto& group = *engine->groups()[0];
  // 4160 elements in slices of 1056.
  EXPECT_TRUE(group.slice().narrow(0, 0, 1024).equal(before.view({-1}).narrow(0, 1056, 1024)));
}

// ---- gradients without a graph ----

TEST(Backward, AGraphThatIsDiscardedReleasesWhatItKept) {
  auto model = std::make_shared<models::Transformer>(kSize);
  auto options = options_for(comm::World::fake(0, 2));
  options.strategy = shard::Strategy::shard_grad_op;
  auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
  const at::Tensor ids = at::randint(0, 50, {2, 8}, at::kLong);
  {
    const at::Tensor logits = nn::call(*model, ids);
    EXPECT_GT(engine->memory().pool_used, 0);
  }
  EXPECT_EQ(engine->memory().pool_used, 0);
}

TEST(Backward, EvaluationWithoutGradientsReleasesEverything) {
  auto model = std::make_shared<models::Transformer>(kSize);
  auto engine =
      shard::fully_shard(model, {.units = {"DecoderLayer"}}, options_for(comm::World::fake(0, 2)));
  const at::NoGradGuard no_grad;
  const at::Tensor ids = at::randint(0, 50, {2, 8}, at::kLong);
  for (int i = 0; i < 3; ++i) {
    nn::call(*model, ids);
    EXPECT_EQ(engine->memory().pool_used, 0);
  }
}

TEST(Backward, AReleasedParameterIsAnErrorToReadAndNotACrash) {
  auto model = std::make_shared<models::Transformer>(kSize);
  auto engine =
      shard::fully_shard(model, {.units = {"DecoderLayer"}}, options_for(comm::World::fake(0, 2)));
  const at::Tensor bias = model->named_parameters()["layers.1.up.bias"];
  for (int round = 0; round < 2; ++round) {
    try {
      (bias + 1).sum().item<double>();
      FAIL() << "no error";
    } catch (const std::exception& e) {
      EXPECT_NE(std::string(e.what()).find(
                    "a parameter of 'layers.1 trainable' was read while it is released"),
                std::string::npos)
          << e.what();
    }
    const at::Tensor ids = at::randint(0, 50, {2, 8}, at::kLong);
    models::next_token_loss(nn::call(*model, ids), ids)
        .backward();  // and it still works in its unit
    engine->clear_gradients();
  }
}

struct Twice : nn::Module {
  Twice() { layer = child<nn::Linear>("layer", 8, 8); }
  at::Tensor forward(const at::Tensor& x) { return layer(at::tanh(layer(x))); }
  nn::Ptr<nn::Linear> layer;
};

TEST_RANKS(Backward, ARecomputedUnitMayRunTwice, 2) {
  auto world = test::join_world();
  Twice reference;
  nn::materialize(reference, 0);
  auto model = std::make_shared<Twice>();
  auto options = options_for(world);
  options.activation_checkpointing = {"Linear"};
  auto engine = shard::fully_shard(model, {.units = {"Linear"}}, options);
  at::manual_seed(4);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = at::randn({3, 8}).requires_grad_();
    nn::call(*model, x).pow(2).sum().backward();
    reference.forward(x).pow(2).sum().backward();
    EXPECT_TRUE(engine->agree().finite);
    for (const auto& item : reference.named_parameters())
      EXPECT_LE(
          (engine->full_gradient(item.key()) - item.value().grad()).abs().max().item<double>(),
          1e-6);
    engine->clear_gradients();
    reference.zero_grad();
  }
}

// Handles that are alive when a model is sharded and gone later must not hide what autograd saves.
TEST(Backward, HandlesMayComeAndGo) {
  auto model = std::make_shared<models::Transformer>(kSize);
  auto handles = model->parameters();
  auto engine =
      shard::fully_shard(model, {.units = {"DecoderLayer"}}, options_for(comm::World::fake(0, 2)));
  handles.clear();
  const at::Tensor ids = at::randint(0, 50, {2, 8}, at::kLong);
  for (int step = 0; step < 2; ++step) {
    models::next_token_loss(nn::call(*model, ids), ids).backward();
    engine->clear_gradients();
  }
}

// A backend's threads may hold what they have filled a little longer, on one rank and not on
// another: that must not decide what backward gathers.
TEST(Backward, WhoHoldsWhatWasGatheredChangesNothing) {
  static std::vector<at::Tensor> held;
  auto model = std::make_shared<models::Transformer>(kSize);
  const auto engine = shard::fully_shard(model, {.units = {"DecoderLayer", "Embedding"}},
                                         options_for(comm::World::fake(0, 2)));
  const at::Tensor ids = at::randint(0, kSize.vocab, {2, kSize.context}, at::kLong);
  test::CountingObserver counts;
  engine->add_observer(&counts);
  const auto gathers_of_a_step = [&] {
    counts.clear();
    models::next_token_loss(nn::call(*model, ids), ids).backward();
    engine->clear_gradients();
    return counts.gathers().count;
  };
  gathers_of_a_step();  // the order of units is learnt
  const std::int64_t wanted = gathers_of_a_step();
  const auto hold = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
            if (std::string(function.name()) == "aten::copy_")
              held.push_back(function.inputs()[0].toTensor());
            return nullptr;
          })
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  const std::int64_t found = gathers_of_a_step();
  at::removeCallback(hold);
  EXPECT_GE(held.size(), static_cast<std::size_t>(wanted));
  EXPECT_EQ(found, wanted);
  held.clear();
  engine->remove_observer(&counts);
}

TEST(Backward, ForwardsWithGradientsButWithoutBackwardLeaveNothing) {
  auto model = std::make_shared<models::Transformer>(kSize);
  auto engine =
      shard::fully_shard(model, {.units = {"DecoderLayer"}}, options_for(comm::World::fake(0, 2)));
  const at::Tensor ids = at::randint(0, 50, {2, 8}, at::kLong);
  for (int i = 0; i < 5; ++i) nn::call(*model, ids);
  EXPECT_EQ(engine->memory().pool_used, 0);
  test::CountingObserver counts;
  engine->add_observer(&counts);
  models::next_token_loss(nn::call(*model, ids), ids).backward();
  counts.clear();
  models::next_token_loss(nn::call(*model, ids), ids).backward();
  EXPECT_EQ(counts.gathers().bytes, engine->plan().moved().gathered) << "the order is learnt again";
}

struct Fragile : nn::Module {
  Fragile() {
    a = child<nn::Linear>("a", 8, 8);
    b = child<nn::Linear>("b", 8, 8);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = a(x);
    if (breaks) throw std::runtime_error("broken");
    return b(y);
  }
  nn::Ptr<nn::Linear> a, b;
  bool breaks = false;
};

struct Branch : nn::Module {
  Branch() {
    a = child<nn::Linear>("a", 8, 8);
    b = child<nn::Linear>("b", 8, 8);
  }
  at::Tensor forward(const at::Tensor& x) { return both ? b(a(x)) : a(x); }
  nn::Ptr<nn::Linear> a, b;
  bool both = true;
};

// Its group is reduced all the same, from a buffer in which the step before was.
TEST_RANKS(Backward, AParameterThatWasNotUsedHasAGradientOfZeros, 2) {
  const auto world = test::join_world();
  auto model = std::make_shared<Branch>();
  const auto engine = shard::fully_shard(model, {}, options_for(world));
  const at::Tensor x = at::ones({1, 8}).to(world->device());
  for (const bool both : {true, false}) {
    model->both = both;
    nn::call(*model, x).sum().backward();
    EXPECT_GT(engine->full_gradient("a.weight").abs().min().item<double>(), 0);
    const double largest = engine->full_gradient("b.weight").abs().max().item<double>();
    EXPECT_EQ(largest > 0, both) << largest;
    EXPECT_TRUE(engine->agree().finite);
    engine->clear_gradients();
  }
}

TEST(Backward, ABrokenPassCanBeAbandoned) {
  auto model = std::make_shared<Fragile>();
  auto options = options_for(comm::World::fake(0, 2));
  options.strategy = shard::Strategy::shard_grad_op;
  auto engine = shard::fully_shard(model, {.units = {"Linear"}}, options);
  const at::Tensor x = at::randn({2, 8});
  nn::call(*model, x).sum().backward();
  const at::Tensor expected = engine->full_gradient("b.weight");
  engine->clear_gradients();
  model->breaks = true;
  EXPECT_THROW(nn::call(*model, x), std::runtime_error);
  model->breaks = false;
  engine->abandon();
  EXPECT_EQ(engine->memory().pool_used, 0);
  nn::call(*model, x).sum().backward();
  EXPECT_TRUE(engine->full_gradient("b.weight").equal(expected));
  EXPECT_EQ(engine->memory().pool_used, 0);
}

// A pass that broke off says nothing about the next one, which another rank may have to follow.
TEST(Backward, ABrokenEvaluationIsNotFollowed) {
  auto model = std::make_shared<Fragile>();
  const auto engine =
      shard::fully_shard(model, {.units = {"Linear"}}, options_for(comm::World::fake(0, 2)));
  test::CountingObserver counts;
  engine->add_observer(&counts);
  const at::AutoGradMode grad_off(false);
  const at::Tensor x = at::ones({2, 8});
  nn::call(*model, x);
  const std::int64_t whole = counts.gathers().count;
  model->breaks = true;
  EXPECT_THROW(nn::call(*model, x), std::runtime_error);
  engine->abandon();
  counts.clear();
  engine->empty_forward();
  EXPECT_EQ(counts.gathers().count, whole);
  engine->remove_observer(&counts);
}

// The sum of many squares is larger than what the reduction's dtype holds; the gradients are not.
TEST(Precision, NormsOfLocalGradientsDoNotOverflow) {
  auto model = std::make_shared<Fragile>();
  shard::ShardOptions options = options_for(comm::World::fake(0, 2));
  options.mixed_precision.reduce = at::kHalf;
  const auto engine = shard::fully_shard(model, {.units = {"Linear"}}, options);
  engine->measure_local_gradients(true);
  (nn::call(*model, at::ones({1, 8})).sum() * 30000).backward();
  const double square = engine->take_local_square();
  EXPECT_TRUE(std::isfinite(square));
  EXPECT_GT(square, 65504.0 * 65504.0);
}

TEST(Backward, ParameterNamesAndTypesStayAsTheyAre) {
  auto model = std::make_shared<models::Transformer>(kSize);
  std::vector<std::string> before;
  for (const auto& item : model->named_parameters()) before.push_back(item.key());
  auto engine =
      shard::fully_shard(model, {.units = {"DecoderLayer"}}, options_for(comm::World::fake(0, 2)));
  std::vector<std::string> after;
  for (const auto& item : model->named_parameters()) after.push_back(item.key());
  EXPECT_EQ(before, after);
}

}  // namespace
}  // namespace floe::engine_test
