// A whole Flamingo on the GPU, through kernels and attention without padding, against the plain
// operators on the CPU: the loss and the gradient of every parameter that trains.
#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "floe/comm/world.h"
#include "floe/models/flamingo/flamingo.h"
#include "floe/nn/load.h"
#include "floe/shard/engine.h"
#include "tests/kernels/compare.h"
#include "tests/models/small_models.h"

namespace floe::flamingo_cuda_test {
namespace {

using models::Flamingo;
using models::FlamingoSpec;

using test::Page;

// Text before the first image, a marker without an image (a zero image), no image, an image that
// nobody looks at, lengths that fill no bucket.
const std::vector<Page> kOneImageEach{{37, 2, 3, {4, 20}}, {32, 1, 1, {0}},
                                      {50, 1, 3, {0, 9}},  {9, 0, 0, {}},
                                      {64, 2, 2, {1}},     {130, 3, 3, {0, 40, 99}}};
// And a page with more markers than slots, whose last tokens look at everything alike.
const std::vector<Page> kEven{{37, 2, 3, {4, 20}}, {40, 2, 2, {0, 10, 20}}, {16, 1, 1, {0}}};

struct Result {
  double loss = 0;
  std::map<std::string, at::Tensor> grads;
};

Result run(const FlamingoSpec& spec, const PackedBatch& batch, at::Device device,
           at::ScalarType dtype, bool checkpointed = false, bool rounded = false) {
  const auto made = std::make_shared<Flamingo>(spec);
  Flamingo& model = *made;
  nn::materialize(model, nullptr, 5, at::kCPU, at::kFloat);
  {
    // The same numbers everywhere: those that the narrowest dtype can hold.
    const at::AutoGradMode grad_off(false);
    for (const auto& parameter : nn::named_parameters(model)) {
      at::Tensor tensor = parameter.tensor;
      if (parameter.name.ends_with("_gate")) tensor.fill_(0.5);
      tensor.set_data(tensor.to(at::kBFloat16).to(device, dtype));
    }
  }
  nn::set_trainable(model, model.trained_by_default());
  for (const auto& module : model.modules())
    if (auto* own = dynamic_cast<nn::Module*>(module.get()); checkpointed && own) {
      const std::string kind = nn::class_name(*own);
      own->checkpointed = kind == "DecoderLayer" || kind == "GatedCrossAttention" ||
                          kind == "PerceiverAttention" || kind == "FeedForward";
    }
  models::InputOptions options;
  options.device = device;
  options.dtype = dtype;
  options.loss.z_loss = 1e-3;
  options.rounded = rounded;
  const auto input = models::prepare(model, batch, options);
  const at::Tensor loss = std::get<0>(models::training_loss(model, input));
  loss.backward();
  Result result{loss.item<double>(), {}};
  for (const auto& parameter : nn::named_parameters(model)) {
    EXPECT_EQ(parameter.tensor.grad().defined(), parameter.tensor.requires_grad())
        << parameter.name;
    if (parameter.tensor.grad().defined())
      result.grads[parameter.name] = parameter.tensor.grad().to(at::kCPU, at::kDouble);
  }
  return result;
}

void compare(const Result& got, const Result& want, double tolerance) {
  EXPECT_NEAR(got.loss, want.loss, tolerance * want.loss);
  ASSERT_EQ(got.grads.size(), want.grads.size());
  double error = 0, norm = 0;
  for (const auto& [name, grad] : want.grads) {
    const double difference = (got.grads.at(name) - grad).norm().item<double>();
    const double scale = grad.norm().item<double>();
    error += difference * difference;
    norm += scale * scale;
    // A single number may cancel out; what it consists of is checked by the others.
    if (grad.numel() > 1) {
      EXPECT_LT(difference, 4 * tolerance * scale) << name << " of norm " << scale;
    }
  }
  EXPECT_LT(std::sqrt(error), tolerance * std::sqrt(norm));
}

class OnGpu : public testing::TestWithParam<
                  std::tuple<const nlohmann::json*, const std::vector<Page>*, int>> {};

TEST_P(OnGpu, GivesWhatTheCpuGives) {
  const FlamingoSpec spec = test::small_flamingo(*std::get<0>(GetParam()), std::get<2>(GetParam()));
  const PackedBatch batch = test::batch_of_pages(*std::get<1>(GetParam()));
  const at::Device gpu(at::kCUDA, 0);
  const Result cpu = run(spec, batch, at::kCPU, at::kFloat);
  compare(run(spec, batch, gpu, at::kFloat), cpu, 2e-4);
  const Result half = run(spec, batch, gpu, at::kBFloat16);
  compare(half, cpu, 4e-2);
  compare(run(spec, batch, gpu, at::kBFloat16, /*checkpointed=*/true), half, 2e-2);
}

INSTANTIATE_TEST_SUITE_P(Models, OnGpu,
                         testing::Combine(testing::Values(&test::kMpt, &test::kNeox, &test::kLlama),
                                          testing::Values(&kOneImageEach, &kEven),
                                          testing::Values(32, 64)));

// Rounded up, as for recorded steps, with pages and padding that look at nothing next to each
// other. Memory that nobody has written to has NaN in it here.
TEST(RoundedOnGpu, ReadsNothingThatNobodyWrote) {
  const std::vector<Page> pages{
      {37, 2, 3, {4, 20}}, {30, 0, 0, {}}, {36, 0, 0, {}}, {40, 1, 1, {0}}, {40, 1, 1, {3}}};
  const PackedBatch batch = test::batch_of_pages(pages);
  const at::Device gpu(at::kCUDA, 0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  for (const nlohmann::json* lm : {&test::kMpt, &test::kNeox})
    for (const int dim_head : {32, 64}) {
      const FlamingoSpec spec = test::small_flamingo(*lm, dim_head);
      compare(run(spec, batch, gpu, at::kBFloat16, /*checkpointed=*/false, /*rounded=*/true),
              run(spec, batch, gpu, at::kBFloat16), 4e-2);
    }
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

// Once the order of units is known, forward and backward of a sharded model leave the host alone.
TEST(SteadyStep, NeverWaitsForTheGpu) {
  for (const nlohmann::json* lm : {&test::kMpt, &test::kNeox}) {
    const auto model = std::make_shared<Flamingo>(test::small_flamingo(*lm));
    nn::set_trainable(*model, model->trained_by_default());
    shard::ShardOptions options;
    options.world = comm::World::fake(0, 4, at::Device(at::kCUDA, 0));
    options.mixed_precision = {.param = at::kBFloat16, .reduce = at::kFloat};
    const auto engine = shard::fully_shard(
        model, {.units = {"DecoderLayer", "GatedCrossAttention", "PerceiverResampler", "ViTBlock"}},
        options);
    PackedBatch batch = test::batch_of_pages(kOneImageEach);
    batch.images = batch.images.to(at::kCUDA);
    models::InputOptions input_options;
    input_options.device = options.world->device();
    input_options.dtype = at::kBFloat16;
    const auto step = [&] {
      const auto input = models::prepare(*model, batch, input_options);
      const at::Tensor loss = std::get<0>(models::training_loss(*model, input));
      loss.backward();
      return loss;
    };
    for (int i = 0; i < 2; ++i) {
      step();
      engine->agree();
      engine->clear_gradients();
    }
    // From here on, whatever would make the host wait throws.
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
    at::Tensor loss;
    EXPECT_NO_THROW(loss = step());
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
    EXPECT_TRUE(std::isfinite(loss.item<double>()));
    EXPECT_GT(engine->agree().gradient_norm, 0);
  }
}

}  // namespace
}  // namespace floe::flamingo_cuda_test
