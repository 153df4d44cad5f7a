// Whole models over real ranks against one process that runs the ranks' batches one after the
// other: losses, gradients of the first step and how far five steps have moved the weights. On the
// GPU this is where a buffer that is used before it has arrived, or after it was given away, shows.
#include <ATen/ATen.h>

#include <cmath>

#include "floe/comm/world.h"
#include "floe/core/str.h"
#include "floe/models/decoders/decoder.h"
#include "floe/models/registry.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/engine.h"
#include "floe/shard/plan/plan.h"
#include "tests/models/small_models.h"
#include "tests/support/ranks.h"

namespace floe::sharded_models_test {
namespace {

constexpr int kSteps = 5;
constexpr double kRate = 2e-3;

struct Case {
  std::string name;
  const nlohmann::json* lm;
  bool flamingo = true;
  shard::Strategy strategy = shard::Strategy::full_shard;
  std::optional<at::ScalarType> param;
  bool cpu_offload = false;
  std::vector<std::string> checkpointing;
  int prefetch = 1;
};

std::vector<Case> cases() {
  using enum shard::Strategy;
  std::vector<Case> all{
      {"flamingo on mpt", &test::kMpt},
      {"flamingo on neox, prefetch 3", &test::kNeox},
      {"flamingo on llama, shard_grad_op", &test::kLlama, true, shard_grad_op},
      {"flamingo on mpt, offloaded", &test::kMpt},
      {"flamingo on mpt, checkpointed", &test::kMpt},
      {"causal lm llama", &test::kLlama, false},
      {"causal lm neox, no_shard", &test::kNeox, false, no_shard},
  };
  all[1].prefetch = 3;
  all[3].cpu_offload = true;
  all[4].checkpointing = {"DecoderLayer", "GatedCrossAttention", "PerceiverAttention"};
  const std::size_t plain = all.size();
  for (std::size_t i = 0; i < plain; ++i) {
    Case half = all[i];
    half.name += ", bf16";
    half.param = at::kBFloat16;
    all.push_back(half);
  }
  return all;
}

// Every rank has pages of its own, with the same number of labelled tokens.
PackedBatch batch_of(const Case& c, int step, int rank) {
  const auto shift = std::int64_t{step} * 7 + rank;
  if (!c.flamingo) return test::batch_of_pages({{40, 0, 0, {}}, {23, 0, 0, {}}}, shift);
  return test::batch_of_pages({{37, 2, 3, {4, 20}}, {32, 1, 1, {0}}, {64, 2, 2, {1}}}, shift);
}

using Tensors = std::map<std::string, at::Tensor>;

struct Record {
  std::vector<double> losses, norms;  // losses: of the batch of every rank, step by step
  Tensors gradients;                  // of the first step
  Tensors weights, moved;             // at the end, since the beginning
};

// `ranks`: whose batches this process runs.
Record train(const Case& c, const std::shared_ptr<comm::World>& world,
             const std::vector<int>& ranks) {
  std::shared_ptr<nn::Module> module;
  models::LanguageModel* model = nullptr;
  if (c.flamingo) {
    auto made = std::make_shared<models::Flamingo>(test::small_flamingo(*c.lm));
    model = made.get();
    module = made;
  } else {
    auto made = std::make_shared<models::CausalLm>(models::decoder_spec({*c.lm, "test"}));
    model = made.get();
    module = made;
  }
  shard::ShardOptions options;
  options.world = world;
  options.strategy = world->size() == 1 ? shard::Strategy::full_shard : c.strategy;
  options.trainable = model->trained_by_default();
  options.mixed_precision = {.param = c.param, .reduce = at::kFloat};
  options.cpu_offload = c.cpu_offload && world->size() > 1;
  options.activation_checkpointing = c.checkpointing;
  options.prefetch = c.prefetch;
  options.seed = 3;
  const auto engine = shard::fully_shard(
      module,
      {.units = c.flamingo ? std::vector<std::string>{"DecoderLayer", "GatedCrossAttention",
                                                      "PerceiverResampler", "ViTBlock"}
                           : std::vector<std::string>{"DecoderLayer"}},
      options);
  module->train();
  optim::AdamW optimizer(*engine, {});
  models::InputOptions how;
  how.device = world->device();
  how.dtype = c.param.value_or(at::kFloat);

  const auto names = [&] {
    std::vector<std::string> result;
    for (const auto& parameter : engine->plan().parameters)
      if (parameter.trainable) result.push_back(parameter.name);
    return result;
  }();
  const auto whole = [&](const std::string& name) {
    return engine->full_parameter(name).to(at::kCPU, at::kDouble, false, /*copy=*/true);
  };
  Record record;
  Tensors start;
  for (const std::string& name : names) start[name] = whole(name);
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      engine->set_gradient_sync(i + 1 == ranks.size());
      const auto input = models::prepare(*model, batch_of(c, step, ranks[i]), how);
      const at::Tensor loss = std::get<0>(models::training_loss(*model, input));
      (loss / static_cast<double>(ranks.size())).backward();
      record.losses.push_back(loss.item<double>());
    }
    if (step == 0)
      for (const std::string& name : names)
        record.gradients[name] = engine->full_gradient(name).to(at::kCPU, at::kDouble);
    const auto agreement = engine->agree();
    EXPECT_TRUE(agreement.finite);
    record.norms.push_back(agreement.gradient_norm);
    optimizer.step(kRate);
    engine->clear_gradients();
  }
  for (const std::string& name : names) {
    record.weights[name] = whole(name);
    record.moved[name] = record.weights[name] - start[name];
  }
  return record;
}

double norm_of(const Tensors& tensors) {
  double squares = 0;
  for (const auto& [name, tensor] : tensors) squares += tensor.square().sum().item<double>();
  return std::sqrt(squares);
}

double distance(const Tensors& a, const Tensors& b) {
  Tensors difference;
  for (const auto& [name, tensor] : a) difference[name] = tensor - b.at(name);
  return norm_of(difference) / norm_of(b);
}

void check_all() {
  const auto world = test::join_world();
  std::vector<int> everybody;
  for (int rank = 0; rank < world->size(); ++rank) everybody.push_back(rank);
  const auto all = cases();
  for (std::size_t i = 0; i < all.size(); ++i) {
    // Two ranks meet every case, three and four every third one.
    if (world->size() > 2 && i % 3 != static_cast<std::size_t>(world->size()) % 3) continue;
    const Case& c = all[i];
    SCOPED_TRACE(str(c.name, ", W=", world->size(), ", rank ", world->rank()));
    const Record one = train(c, comm::World::fake(0, 1, world->device()), everybody);
    const Record sharded = train(c, world, {world->rank()});
    const bool half = c.param.has_value();
    for (std::size_t step = 0; step < kSteps; ++step) {
      const double expected =
          one.losses[step * everybody.size() + static_cast<std::size_t>(world->rank())];
      EXPECT_NEAR(sharded.losses[step], expected, (half ? 2e-2 : 1e-5) * expected) << step;
      EXPECT_NEAR(sharded.norms[step], one.norms[step], (half ? 5e-2 : 1e-4) * one.norms[step])
          << step;
    }
    const double gradient = distance(sharded.gradients, one.gradients);
    const double weight = distance(sharded.weights, one.weights);
    const double moved = distance(sharded.moved, one.moved);
    EXPECT_LT(gradient, half ? 1e-2 : 1e-5);
    // A step, an average or a part of the model that is missing is tenths of the movement.
    EXPECT_LT(moved, half ? 1e-1 : 1e-3);
    EXPECT_GT(norm_of(sharded.moved), 1e-2 * norm_of(sharded.weights))
        << "the weights must have moved visibly";
    if (world->rank() == 0)
      std::printf("%-40s gradients %.1e, weights %.1e, movement %.1e\n", c.name.c_str(), gradient,
                  weight, moved);
  }
}

TEST_RANKS(ShardedModels, TwoRanks, 2) { check_all(); }
TEST_RANKS(ShardedModels, ThreeRanks, 3) { check_all(); }
TEST_RANKS(ShardedModels, FourRanks, 4) { check_all(); }

}  // namespace
}  // namespace floe::sharded_models_test
