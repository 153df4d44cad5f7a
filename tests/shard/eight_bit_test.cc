// Frozen matrices in 8 bits: what is stored so, what comes out of it, what moves, and what is
// refused. That training equals a model with the rounded weights is in parity_test.cc, the formulas
// over all strategies in counts_test.cc.
#include "floe/kernels/eight_bit/eight_bit.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>

#include "floe/comm/world.h"
#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/io/safetensors/safetensors.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/models/transformer.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

namespace floe::eight_bit_test {
namespace {

using kernels::EightBitSlices;
using shard::Strategy;

constexpr auto kTypes = {at::kChar, at::kFloat8_e4m3fn};
const models::TransformerSize kSize{
    .vocab = 61, .dim = 24, .layers = 3, .heads = 3, .context = 12, .adapter = 5};

// ---- codes and slices ----

TEST(Codes, AreWithinHalfAStepOfTheValue) {
  at::manual_seed(1);
  const at::Tensor values = at::randn({200, 333}) * at::logspace(-6, 4, 200).unsqueeze(1);
  const at::Tensor largest = values.abs().amax(1, true);
  const at::Tensor int8 = test::through_eight_bit(values, at::kChar);
  EXPECT_TRUE(((int8 - values).abs() <= largest / 254 * (1 + 1e-5)).all().item<bool>());
  // Three bits of mantissa: a sixteenth of the value, or half the smallest step of the row.
  const at::Tensor fp8 = test::through_eight_bit(values, at::kFloat8_e4m3fn);
  const at::Tensor bound = at::maximum(values.abs() / 16, largest / 448 * std::ldexp(1.0, -10));
  EXPECT_TRUE(((fp8 - values).abs() <= bound * (1 + 1e-5)).all().item<bool>());
}

TEST(Codes, OfZerosTinyAndHugeRows) {
  for (const auto dtype : kTypes) {
    at::Tensor values = at::zeros({5, 8});
    values[1][3] = 1e-44;
    values[2][0] = 3e38;
    values[2][1] = -3e38;
    values[3][7] = std::numeric_limits<float>::infinity();
    values[4][2] = std::nan("");
    const auto rows = kernels::to_eight_bit(values, dtype);
    const at::Tensor back = rows.codes.view(dtype).to(at::kFloat) * rows.scales.unsqueeze(1);
    EXPECT_TRUE(back[0].equal(values[0]));
    EXPECT_LE((back[1] - values[1]).abs().max().item<double>(), 1e-37);
    EXPECT_TRUE(back[2].isfinite().all().item<bool>());
    EXPECT_NEAR(back[2][1].item<double>() / -3e38, 1, 1e-6);
    EXPECT_TRUE(rows.scales.narrow(0, 0, 3).isfinite().all().item<bool>());
    EXPECT_FALSE(rows.scales[3].isfinite().item<bool>()) << "who stores it has to refuse";
    EXPECT_FALSE(rows.scales[4].isfinite().item<bool>());
  }
}

// On the CPU this says little; eight_bit_cuda runs it on a GPU.
TEST(Codes, AreTheSameBitsOnEveryDevice) {
  at::manual_seed(2);
  const at::Tensor values = at::randn({300, 517}) * at::logspace(-30, 30, 300).unsqueeze(1);
  for (const auto dtype : {at::kChar, at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const auto here = kernels::to_eight_bit(values, dtype);
    const auto there = kernels::to_eight_bit(values.to(test::device()), dtype);
    EXPECT_TRUE(there.scales.cpu().equal(here.scales));
    EXPECT_TRUE(there.codes.cpu().equal(here.codes));
  }
}

// Random matrices in random slices, some with rows longer than a slice: the same bits as whole rows
// times their scales, on this device and for every cut.
TEST(Slices, GiveTheSameValuesHoweverTheyAreCut) {
  std::mt19937 random(5);
  const auto draw = [&](int from, int to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(random);
  };
  for (int round = 0; round < 60; ++round) {
    std::vector<std::pair<std::int64_t, std::int64_t>> shapes;
    std::int64_t numel = 0;
    // Now and then more matrices than one launch takes, and rows that are whole packs.
    const std::int64_t count = round % 10 == 9 ? 250 : draw(1, 6);
    for (std::int64_t m = 0; m < count; ++m) {
      const std::int64_t row = round % 3 == 0 ? 16 * draw(1, 20) : draw(1, 200);
      shapes.emplace_back(draw(1, 40), row);
      numel += shapes.back().first * row;
    }
    const int slices = static_cast<int>(draw(1, 8));
    const EightBitSlices layout(
        shapes, round_up(ceil_div(numel, slices), EightBitSlices::kAlignment), slices);
    ASSERT_EQ(layout.numel, numel);
    for (const auto dtype : kTypes) {
      at::Tensor stored = at::zeros({slices * layout.slice_bytes()}, at::kByte);
      std::vector<at::Tensor> expected, codes, scales;
      for (const auto& [rows, row] : shapes) {
        const auto quantised = kernels::to_eight_bit(at::randn({rows, row}), dtype);
        codes.push_back(quantised.codes.view({-1}));
        scales.push_back(quantised.scales);
        expected.push_back(
            (quantised.codes.view(dtype).to(at::kFloat) * quantised.scales.unsqueeze(1))
                .view({-1}));
      }
      const at::Tensor all_codes = at::cat(codes), all_scales = at::cat(scales);
      for (int s = 0; s < slices; ++s) {
        const at::Tensor slice = stored.narrow(0, s * layout.slice_bytes(), layout.slice_bytes());
        const std::int64_t begin = std::min(s * layout.slice_numel, numel);
        const std::int64_t end = std::min(begin + layout.slice_numel, numel);
        layout.codes(slice)
            .narrow(0, 0, end - begin)
            .copy_(all_codes.narrow(0, begin, end - begin));
        const auto [first, num_rows] = layout.rows_of(s);
        ASSERT_LE(num_rows, layout.num_scales);
        layout.put_scales(slice, first, all_scales.narrow(0, first, num_rows));
      }
      EXPECT_TRUE(layout.all_codes(stored).narrow(0, 0, numel).equal(all_codes));
      EXPECT_TRUE(layout.all_scales(stored).equal(all_scales));
      for (const auto param : {at::kFloat, at::kHalf, at::kBFloat16}) {
        const at::Tensor out = at::full({slices * layout.slice_numel}, 7,
                                        at::TensorOptions().dtype(param).device(test::device()));
        kernels::from_eight_bit(layout, dtype, stored.to(test::device()), out);
        EXPECT_TRUE(out.cpu().narrow(0, 0, numel).equal(at::cat(expected).to(param)))
            << "round " << round << " in " << c10::toString(dtype) << " to "
            << c10::toString(param);
        EXPECT_TRUE((out.cpu().narrow(0, numel, out.numel() - numel) == 7).all().item<bool>())
            << "nothing is written behind the last matrix";
      }
    }
  }
}

// ---- what is stored so ----

shard::ShardOptions options_for(std::shared_ptr<comm::World> world, at::ScalarType dtype) {
  shard::ShardOptions options;
  options.world = std::move(world);
  options.trainable = {{"*.adapter.*", "norm.*"}};
  options.frozen.dtype = dtype;
  options.seed = 3;
  return options;
}
const shard::Policy kPolicy{.units = {"DecoderLayer"}, .lone_unit_numel = 1000};

template <class F>
std::string error_of(F&& run) {
  try {
    run();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing was thrown";
}

TEST(Stored, AreFrozenMatricesAndNothingElse) {
  for (const bool tied : {false, true})
    for (const auto dtype : kTypes) {
      models::TransformerSize size = kSize;
      size.tied = tied;
      models::Transformer model(size);
      const auto options = options_for(nullptr, dtype);
      const auto plan = shard::make_plan(model, kPolicy, options, 4);
      int matrices = 0;
      for (const auto& group : plan.groups)
        for (const std::size_t p : group.parameters) {
          const auto& parameter = plan.parameters[p];
          const bool wanted = !parameter.trainable && parameter.shape.size() == 2 &&
                              parameter.name != "embed.weight" &&
                              parameter.name != "positions.weight" &&
                              (!tied || parameter.name != "head.weight");
          EXPECT_EQ(group.eight_bit(), wanted) << parameter.name;
          EXPECT_EQ(group.name.ends_with(dtype == at::kChar ? " int8" : " fp8"), wanted);
          EXPECT_EQ(group.storage_dtype, wanted ? dtype : at::kFloat);
          matrices += wanted;
        }
      EXPECT_EQ(matrices, 3 * 4 + !tied);
    }
}

TEST(Stored, NothingThatSomeSetTrains) {
  models::Transformer model(kSize);
  auto options = options_for(nullptr, at::kChar);
  options.trainable.reset();
  options.sets = {{"a", {"layers.0.*"}}, {"b", {"layers.1.up.*"}}};
  auto plan = shard::make_plan(model, kPolicy, options, 2);
  for (const std::size_t set : {0, 1}) {
    plan.activate(set);
    for (const auto& group : plan.groups)
      if (group.trainable) {
        EXPECT_FALSE(group.eight_bit()) << group.name;
      }
  }
}

TEST(Stored, NoFrozenMatrixIsAnError) {
  auto options = options_for(nullptr, at::kChar);
  options.trainable = {{"*"}};
  models::Transformer model(kSize);
  EXPECT_EQ(error_of([&] { shard::make_plan(model, kPolicy, options, 2); }),
            "FrozenOptions::dtype asks for 8 bits, but no matrix of the model is frozen in all "
            "phases; freeze some, or leave it out");
  options = options_for(nullptr, at::kInt);
  EXPECT_EQ(error_of([&] { shard::make_plan(model, kPolicy, options, 2); }),
            "FrozenOptions::dtype cannot be Int; choose fp32, bf16, fp16, int8 or fp8");
}

TEST(Stored, ValuesThatAreNotFiniteAreRefused) {
  for (const double wrong : {std::nan(""), -std::numeric_limits<double>::infinity()}) {
    torch::nn::Sequential model(torch::nn::Linear(6, 9), torch::nn::Linear(9, 2));
    {
      const at::NoGradGuard no_grad;
      model->named_parameters()["0.weight"][7][4] = wrong;
    }
    auto options = options_for(comm::World::fake(0, 2), at::kFloat8_e4m3fn);
    options.trainable = {{"1.*"}};
    options.watch_operators = true;
    EXPECT_EQ(error_of([&] { shard::fully_shard(model.ptr(), {.units = {"Linear"}}, options); }),
              "parameter '0.weight' has a value that is not finite in row 7, which 8 bits cannot "
              "hold; repair the weights, or leave FrozenOptions::dtype out");
  }
}

// ---- bytes ----

TEST(Bytes, AreOnePerElementAndFourPerRow) {
  models::Transformer model({.vocab = 512, .dim = 256, .layers = 4, .heads = 8, .adapter = 16});
  auto options = options_for(nullptr, at::kChar);
  options.mixed_precision.param = at::kBFloat16;
  for (const int world : {1, 2, 8}) {
    const auto eight = shard::make_plan(model, kPolicy, options, world);
    auto plain_options = options;
    plain_options.frozen.dtype.reset();
    const auto plain = shard::make_plan(model, kPolicy, plain_options, world);
    for (const auto& group : eight.groups) {
      if (!group.eight_bit()) continue;
      std::int64_t elements = 0, rows = 0;
      for (const std::size_t p : group.parameters) {
        elements += eight.parameters[p].numel;
        rows += eight.parameters[p].shape[0];
      }
      // Rows that are cut count twice; the longest list of scales decides for all slices.
      const std::int64_t least = elements + 4 * rows;
      EXPECT_GE(group.slice_bytes() * world, least);
      EXPECT_LE(group.slice_bytes() * world, least * 1.02 + 64 * world) << group.name;
      EXPECT_EQ(group.moved_bytes(), group.slice_bytes() * world);
      EXPECT_EQ(group.staging_bytes(), world > 1 ? group.moved_bytes() : 0);
      EXPECT_EQ(group.gathered_bytes(), 2 * group.layout.padded_numel());
    }
    EXPECT_LT(static_cast<double>(eight.held().frozen_slices),
              0.6 * static_cast<double>(plain.held().frozen_slices));
    if (world > 1) {
      EXPECT_LT(static_cast<double>(eight.moved().gathered),
                0.65 * static_cast<double>(plain.moved().gathered));
    }
  }
}

// ---- ranks ----

// Every world size stores and computes with the same values, however slices cut rows.
void values_do_not_depend_on_the_world() {
  const auto world = test::join_world();
  for (const auto dtype : kTypes)
    for (const auto strategy : {Strategy::full_shard, Strategy::no_shard}) {
      auto model = std::make_shared<models::Transformer>(kSize);
      auto options = options_for(world, dtype);
      options.strategy = strategy;
      const auto engine = shard::fully_shard(model, kPolicy, options);
      models::Transformer whole(kSize);
      nn::materialize(whole, options.seed, world->device());
      for (const auto& p : nn::named_parameters(whole)) {
        const at::Tensor value = engine->full_parameter(p.name);
        const bool stored = p.tensor.dim() == 2 && !p.name.starts_with("embed") &&
                            !p.name.starts_with("positions") &&
                            p.name.find("adapter") == std::string::npos;
        EXPECT_TRUE(value.to(world->device())
                        .equal(stored ? test::through_eight_bit(p.tensor.detach(), dtype)
                                      : p.tensor.detach()))
            << p.name;
      }
    }
}
TEST_RANKS(Ranks, ValuesOfOneRank, 1) { values_do_not_depend_on_the_world(); }
TEST_RANKS(Ranks, ValuesOfTwoRanks, 2) { values_do_not_depend_on_the_world(); }
TEST_RANKS(Ranks, ValuesOfFourRanks, 4) { values_do_not_depend_on_the_world(); }

// A closed container that is followed by its operators.
TEST_RANKS(Ranks, WatchedModules, 2) {
  const auto world = test::join_world();
  const auto make = [&] {
    at::manual_seed(3);
    torch::nn::Sequential model(torch::nn::Linear(20, 30), torch::nn::Tanh(),
                                torch::nn::Linear(30, 7), torch::nn::Linear(7, 5));
    model->to(world->device());
    return model;
  };
  torch::nn::Sequential plain = make(), watched = make();
  {
    const at::NoGradGuard no_grad;
    for (auto& item : plain->named_parameters()) {
      item.value().requires_grad_(item.key().starts_with("0."));
      if (!item.value().requires_grad() && item.value().dim() == 2)
        item.value().copy_(test::through_eight_bit(item.value(), at::kChar));
    }
  }
  auto options = options_for(world, at::kChar);
  options.trainable = {{"0.*"}};
  options.watch_operators = true;
  const auto engine = shard::fully_shard(watched.ptr(), {.units = {"Linear"}}, options);
  at::manual_seed(9);  // the same on both ranks
  for (int step = 0; step < 2; ++step) {
    const at::Tensor x = at::randn({4, 20}).to(world->device());
    const at::Tensor a = plain->forward(x).pow(2).mean(), b = watched->forward(x).pow(2).mean();
    EXPECT_EQ(a.item<double>(), b.item<double>());
    a.backward();
    b.backward();
    EXPECT_TRUE(engine->agree().finite);
    for (auto& item : plain->named_parameters()) {
      const at::Tensor gradient = engine->full_gradient(item.key());
      ASSERT_EQ(gradient.defined(), item.value().requires_grad()) << item.key();
      if (gradient.defined()) {
        EXPECT_TRUE(gradient.to(world->device()).equal(item.value().grad())) << item.key();
      }
      item.value().mutable_grad().reset();
    }
    engine->clear_gradients();
  }
}

// The peak of a step: as in memory_test.cc, with the codes of the unit that is on its way.
TEST_RANKS(Ranks, PeakOfAStepIsWithinTheFormula, 4) {
  const auto world = test::join_world();
  const models::TransformerSize size{
      .vocab = 512, .dim = 256, .layers = 8, .heads = 8, .context = 16, .adapter = 16};
  const at::Device device = world->device();
  const at::Tensor ids = at::randint(0, size.vocab, {1, size.context}, at::kLong).to(device);
  const auto peak_of = [&](std::optional<at::ScalarType> dtype, shard::HeldBytes& held) {
    const std::int64_t before = diagnostics::device_memory(device).current_bytes;
    auto model = std::make_shared<models::Transformer>(size);
    auto options = options_for(world, at::kChar);
    options.frozen.dtype = dtype;
    const auto engine = shard::fully_shard(model, kPolicy, options);
    held = engine->plan().held();
    std::int64_t peak = 0;
    for (int step = 0; step < 4; ++step) {
      diagnostics::reset_peak(device);
      models::next_token_loss(nn::call(*model, ids), ids).backward();
      engine->agree();
      peak = diagnostics::device_memory(device).peak_bytes - before;
      const auto used = engine->memory();
      EXPECT_EQ(used.pool_used, 0);
      EXPECT_LE(used.pool_peak, held.pool);
      EXPECT_EQ(used.frozen_slices, held.frozen_slices);
      engine->clear_gradients();
    }
    return peak;
  };
  shard::HeldBytes plain, eight;
  const std::int64_t plain_peak = peak_of(std::nullopt, plain), peak = peak_of(at::kChar, eight);
  // The activations are the same: what is left between the two is what the formula says.
  const std::int64_t saved = plain.frozen_slices - eight.frozen_slices;
  EXPECT_LE(peak, plain_peak - saved + (eight.pool - plain.pool) + 256 * kKiB);
  EXPECT_LT(3 * eight.frozen_slices, plain.frozen_slices) << "fp32 against 8 bits";
}

// ---- sets ----

class File {
 public:
  explicit File(const std::string& skip) {
    models::Transformer written(kSize);
    nn::materialize(written, 11);
    SafetensorsWriter writer(path_);
    for (const auto& p : nn::named_parameters(written)) {
      if (p.name == skip) continue;
      tensors[p.name] = p.tensor.detach().contiguous();
      writer.declare(p.name, DType::f32, p.tensor.sizes().vec());
    }
    for (const auto& [name, value] : tensors)
      writer.write(name, {static_cast<const std::byte*>(value.const_data_ptr()), value.nbytes()});
    writer.finish();
    source = open_tensors(path_);
  }
  ~File() { ::unlink(path_.c_str()); }

  std::map<std::string, at::Tensor> tensors;
  std::shared_ptr<const TensorSource> source;

 private:
  std::string path_ = str(::testing::TempDir(), "eight_bit_", ::getpid(), ".safetensors");
};

TEST_RANKS(Sets, MastersComeFromTheFilesOrNotAtAll, 2) {
  const auto world = test::join_world();
  const File file("layers.2.down.weight");
  for (const auto dtype : kTypes) {
    auto model = std::make_shared<models::Transformer>(kSize);
    auto options = options_for(world, dtype);
    options.source = file.source.get();
    const auto engine = shard::fully_shard(model, kPolicy, options);
    std::map<std::string, at::Tensor> before;
    for (const auto& p : engine->plan().parameters)
      before[p.name] = engine->full_parameter(p.name).clone();

    EXPECT_EQ(error_of([&] { engine->set_trainable({"layers.1.up.*"}); }),
              "'layers.1.up.weight' is to train, but is stored in 8 bits, which are too few to "
              "start from; set `reread`, so that it is read again from the files");
    EXPECT_EQ(error_of([&] { engine->set_trainable({"layers.2.down.*"}, {.reread = true}); }),
              "'layers.2.down.weight' is to train, but is stored in 8 bits, and no file has it to "
              "be read again; name it in a set from the start");

    engine->set_trainable({"layers.1.up.*"}, {.reread = true});
    for (const auto& p : engine->plan().parameters) {
      const at::Tensor value = engine->full_parameter(p.name);
      const bool trains = p.name.starts_with("layers.1.up.");
      const at::Tensor expected =
          trains ? file.tensors.at(p.name).to(world->device()) : before.at(p.name);
      EXPECT_TRUE(value.equal(expected)) << p.name;
    }
    int eight_bit = 0;
    for (const auto& group : engine->groups()) eight_bit += group->plan().eight_bit();
    EXPECT_GT(eight_bit, 0);
    const at::Tensor ids = at::randint(0, kSize.vocab, {2, 12}, at::kLong).to(world->device());
    models::next_token_loss(nn::call(*model, ids), ids).backward();
    EXPECT_TRUE(engine->agree().finite);
    EXPECT_TRUE(engine->full_gradient("layers.1.up.weight").defined());
  }
}

}  // namespace
}  // namespace floe::eight_bit_test
