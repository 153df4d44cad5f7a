// What checkpointed modules keep, on the GPU: the same numbers whatever they keep and wherever it
// waits, no matrix product twice when products are kept, the peak of memory in the right order, and
// a host that never waits.
#include <ATen/ATen.h>
#include <ATen/ops/addmm_cuda_dispatch.h>
#include <ATen/ops/bmm_cuda_dispatch.h>
#include <ATen/ops/mm_cuda_dispatch.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/library.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <vector>

#include "floe/models/flamingo/flamingo.h"
#include "floe/models/transformer.h"
#include "floe/nn/activations/host_store.h"
#include "floe/nn/load.h"
#include "tests/kernels/compare.h"
#include "tests/models/small_models.h"

namespace floe::kept_activations_test {
namespace {

int matrix_products = 0;

at::Tensor counted_mm(const at::Tensor& a, const at::Tensor& b) {
  matrix_products += 1;
  return at::cuda::mm(a, b);
}
at::Tensor counted_bmm(const at::Tensor& a, const at::Tensor& b) {
  matrix_products += 1;
  return at::cuda::bmm(a, b);
}
at::Tensor counted_addmm(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                         const at::Scalar& beta, const at::Scalar& alpha) {
  matrix_products += 1;
  return at::cuda::addmm(c, a, b, beta, alpha);
}

// In place of the kernels themselves.
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("mm", &counted_mm);
  library.impl("bmm", &counted_bmm);
  library.impl("addmm", &counted_addmm);
}

struct Way {
  const char* name;
  bool checkpointed = true;
  nn::KeptActivations kept;
};
const std::vector<Way> kWays{
    {"all activations", false},
    {"inputs"},
    {"products", true, {.products = true}},
    {"inputs in host memory", true, {.in_host = true, .in_host_from = 0}},
    {"products in host memory", true, {.products = true, .in_host = true, .in_host_from = 0}},
};

void set(torch::nn::Module& model, const Way& way) {
  for (const auto& module : model.modules())
    if (auto* own = dynamic_cast<nn::Module*>(module.get())) {
      const std::string kind = nn::class_name(*own);
      own->checkpointed =
          way.checkpointed &&
          (kind == "DecoderLayer" || kind == "PerceiverResampler" || kind == "GatedCrossAttention");
      own->kept = way.kept;
    }
}

std::map<std::string, at::Tensor> take_gradients(torch::nn::Module& model) {
  std::map<std::string, at::Tensor> gradients;
  for (const auto& parameter : nn::named_parameters(model)) {
    at::Tensor tensor = parameter.tensor;
    if (tensor.grad().defined()) gradients[parameter.name] = tensor.grad().to(at::kFloat);
    tensor.mutable_grad().reset();
  }
  return gradients;
}

class KeptOnGpu : public testing::TestWithParam<const nlohmann::json*> {};

TEST_P(KeptOnGpu, GivesTheSameAndComputesNoProductTwice) {
  const auto owner = std::make_shared<models::Flamingo>(test::small_flamingo(*GetParam()));
  models::Flamingo& model = *owner;
  const at::Device gpu(at::kCUDA, 0);
  nn::materialize(model, nullptr, 5, gpu, at::kBFloat16);
  {
    const at::AutoGradMode grad_off(false);
    for (const auto& parameter : nn::named_parameters(model))
      if (at::Tensor tensor = parameter.tensor; parameter.name.ends_with("_gate"))
        tensor.fill_(0.5);
  }
  nn::set_trainable(model, model.trained_by_default());
  const PackedBatch batch = test::batch_of_pages(
      {{37, 2, 3, {4, 20}}, {50, 1, 3, {0, 9}}, {64, 2, 2, {1}}, {130, 3, 3, {0, 40, 99}}});
  models::InputOptions options;
  options.device = gpu;
  options.dtype = at::kBFloat16;
  double loss_of_all = 0;
  int products_of_all = 0;
  std::map<std::string, at::Tensor> expected;
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name);
    set(model, way);
    const auto input = models::prepare(model, batch, options);
    const at::Tensor loss = std::get<0>(models::training_loss(model, input));
    matrix_products = 0;
    loss.backward();
    const auto gradients = take_gradients(model);
    if (!way.checkpointed) {
      loss_of_all = loss.item<double>();
      products_of_all = matrix_products;
      expected = gradients;
      continue;
    }
    if (way.kept.products)
      EXPECT_EQ(matrix_products, products_of_all);
    else
      EXPECT_GT(matrix_products, products_of_all);
    EXPECT_NEAR(loss.item<double>(), loss_of_all, 1e-3 * loss_of_all);
    ASSERT_EQ(gradients.size(), expected.size());
    for (const auto& [name, gradient] : expected)
      if (gradient.numel() > 1) test::expect_close(gradients.at(name), gradient, 2e-2, name);
    EXPECT_EQ(nn::stored_bytes(), 0) << "the store is empty when backward is over";
  }
}

nlohmann::json parallel_neox() {
  nlohmann::json json = test::kNeox;
  json["use_parallel_residual"] = true;
  return json;
}
const nlohmann::json kParallelNeox = parallel_neox();

INSTANTIATE_TEST_SUITE_P(Models, KeptOnGpu,
                         testing::Values(&test::kMpt, &test::kNeox, &test::kLlama, &kParallelNeox));

// A layer's input is 16 MiB here; all of its activations are about 16 times that.
TEST(KeptActivationsOnGpu, PeaksAreInOrderAndTheHostNeverWaits) {
  const models::TransformerSize size{
      .vocab = 512, .dim = 512, .layers = 12, .heads = 8, .context = 2048};
  const auto owner = std::make_shared<models::Transformer>(size);
  models::Transformer& model = *owner;
  const at::Device gpu(at::kCUDA, 0);
  nn::materialize(model, nullptr, 3, gpu, at::kBFloat16);
  nn::set_trainable(model, {"layers.*", "norm.*", "head.*"});
  at::manual_seed(1);
  const at::Tensor ids = at::randint(0, size.vocab, {8, size.context}, at::kLong).to(gpu);
  const std::int64_t input = ids.numel() * size.dim * 2;
  std::map<std::string, std::int64_t> peaks;
  std::map<std::string, at::Tensor> expected;
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name);
    set(model, way);
    std::map<std::string, at::Tensor> gradients;
    double milliseconds = 0;
    for (int step = 0; step < 3; ++step) {
      c10::cuda::device_synchronize();
      c10::cuda::CUDACachingAllocator::resetPeakStats(0);
      const std::int64_t before =
          c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].current;
      const auto start = std::chrono::steady_clock::now();
      // The first step pins memory; after it, whatever would make the host wait throws.
      if (step > 0)
        c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
      at::Tensor loss = models::next_token_loss(model.forward(ids), ids);
      loss.backward();
      c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
      c10::cuda::device_synchronize();
      milliseconds =
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
              .count();
      peaks[way.name] =
          c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].peak - before;
      loss.reset();
      gradients = take_gradients(model);
    }
    std::printf("%-24s peak %7.1f MiB beyond weights, %7.1f ms a step\n", way.name,
                static_cast<double>(peaks[way.name]) / (1 << 20), milliseconds);
    if (!way.checkpointed) {
      expected = gradients;
      continue;
    }
    for (const auto& [name, gradient] : expected)
      test::expect_close(gradients.at(name), gradient, 2e-2, name);
    EXPECT_EQ(nn::stored_bytes(), 0);
  }
  EXPECT_GT(peaks["all activations"], peaks["products"]);
  EXPECT_GT(peaks["products"], peaks["inputs"]);
  EXPECT_GT(peaks["inputs"], peaks["inputs in host memory"]);
  EXPECT_GT(peaks["products"], peaks["products in host memory"]);
  // Ten inputs' worth of each layer, less those of three layers that are on the device at any time.
  EXPECT_GT(peaks["products"] - peaks["products in host memory"], (12 - 3) * 8 * input);
}

}  // namespace
}  // namespace floe::kept_activations_test
