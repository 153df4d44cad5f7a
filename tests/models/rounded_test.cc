// Rounding a batch up to a shape that repeats changes neither its loss nor its gradients.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "floe/batch/packed_batch.h"
#include "floe/models/flamingo/media_plan.h"
#include "floe/models/language_model.h"
#include "floe/models/model_input.h"
#include "floe/nn/load.h"
#include "tests/models/small_models.h"

namespace floe::rounded_test {
namespace {

using models::rounded;
using test::Page;

// Text before the first image, a marker without an image (a zero image), no image, an image that
// nobody looks at, more markers than slots.
const std::vector<Page> kOdd{{37, 2, 3, {4, 20}}, {32, 1, 1, {0}}, {50, 1, 3, {0, 9}},
                             {9, 0, 0, {}},       {64, 2, 2, {1}}, {40, 2, 2, {0, 10, 20}}};
const std::vector<Page> kPlain{{30, 1, 1, {0}}, {61, 2, 2, {0, 33}}};
const std::vector<Page> kNoImage{{30, 0, 0, {}}, {5, 0, 0, {}}};

struct Result {
  double loss = 0;
  at::Tensor of_source;
  std::map<std::string, at::Tensor> grads;
};

template <class Model>
Result run(Model& model, const PackedBatch& batch, bool round) {
  for (const auto& parameter : nn::named_parameters(model)) {
    at::Tensor tensor = parameter.tensor;
    tensor.mutable_grad().reset();
  }
  models::InputOptions options;
  options.rounded = round;
  options.num_sources = 2;
  options.loss = {.weight = {0.2, 1.0}, .z_loss = 1e-3};
  const auto [loss, sums] = models::training_loss(model, models::prepare(model, batch, options));
  loss.backward();
  Result result{loss.template item<double>(), sums, {}};
  for (const auto& parameter : nn::named_parameters(model))
    if (parameter.tensor.grad().defined())
      result.grads[parameter.name] = parameter.tensor.grad().clone();
  return result;
}

void compare(const Result& got, const Result& want) {
  EXPECT_NEAR(got.loss, want.loss, 1e-6 * want.loss);
  ASSERT_EQ(got.of_source.numel(), want.of_source.numel());
  EXPECT_TRUE(at::allclose(got.of_source, want.of_source, 1e-6, 1e-6));
  ASSERT_EQ(got.grads.size(), want.grads.size());
  double norm = 0;
  for (const auto& [name, grad] : want.grads) norm = std::max(norm, grad.norm().item<double>());
  for (const auto& [name, grad] : want.grads)
    EXPECT_LT((got.grads.at(name) - grad).norm().item<double>(), 1e-6 * norm) << name;
}

class Rounded : public testing::TestWithParam<std::tuple<const nlohmann::json*, bool>> {};

TEST_P(Rounded, HasTheSameLossAndGradients) {
  models::FlamingoSpec spec = test::small_flamingo(*std::get<0>(GetParam()));
  spec.only_immediate_media = std::get<1>(GetParam());
  models::Flamingo model(spec);
  nn::materialize(model, nullptr, 5, at::kCPU, at::kFloat);
  {
    const at::AutoGradMode grad_off(false);
    for (const auto& parameter : nn::named_parameters(model))
      if (parameter.name.ends_with("_gate")) at::Tensor(parameter.tensor).fill_(0.5);
  }
  nn::set_trainable(model, model.trained_by_default());
  for (const auto* pages : {&kOdd, &kPlain, &kNoImage}) {
    PackedBatch batch = test::batch_of_pages(*pages);
    batch.source = at::arange(batch.num_sequences(), at::kLong).remainder(2);
    compare(run(model, batch, true), run(model, batch, false));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Rounded,
                         testing::Combine(testing::Values(&test::kMpt, &test::kNeox, &test::kLlama),
                                          testing::Bool()));

TEST(Rounded, ShapesFollowFromTheBuckets) {
  for (std::int64_t extra = 0; extra < 12; ++extra) {
    const std::vector<Page> pages{{320 + extra, 2, 2, {0, 33}}, {200, 1, 1, {0}}, {310, 1, 1, {3}}};
    const PackedBatch batch = test::batch_of_pages(pages);
    const PackedBatch padded = rounded(batch, test::kMedia);
    EXPECT_EQ(padded.num_tokens(), 896) << extra;
    EXPECT_EQ(padded.num_sequences(), 3 + 1);
    EXPECT_EQ(padded.image_offsets[-1].item<std::int64_t>(), 16);
    EXPECT_EQ(padded.num_labels(), batch.num_labels());
    EXPECT_TRUE(at::equal(padded.ids.narrow(0, 0, batch.num_tokens()), batch.ids));
    EXPECT_EQ(padded.ids.eq(test::kMedia).sum().item<std::int64_t>(),
              batch.ids.eq(test::kMedia).sum().item<std::int64_t>() + 12);
  }
}

TEST(Rounded, WithoutImagesAndWhenItFits) {
  PackedBatch batch = test::batch_of_pages({{512, 0, 0, {}}, {512, 0, 0, {}}});
  const PackedBatch padded = rounded(batch, /*media_token=*/-1);
  EXPECT_EQ(padded.num_tokens(), 1024);
  EXPECT_EQ(padded.image_offsets[-1].item<std::int64_t>(), 0);
}

// The kernels of an accelerator are told the longest sequence for the longest span, which would not
// follow from the size of the batch. Pages, and sequences of padding, that look at nothing or at
// the zero image stand next to each other.
TEST(Rounded, NoSpanIsLongerThanTheLongestSequence) {
  const std::vector<Page> text{{40, 1, 1, {0}}, {30, 0, 0, {}}, {37, 0, 0, {}}},
      zero_image{{20, 0, 1, {0}}, {25, 0, 1, {0}}},
      many(33, Page{40, 1, 1, {0}});  // with several sequences of padding
  for (const auto* pages : {&text, &zero_image, &many})
    for (const bool round : {false, true}) {
      const PackedBatch given = test::batch_of_pages(*pages);
      const PackedBatch batch = round ? rounded(given, test::kMedia) : given;
      const auto segments =
          std::make_shared<const nn::Segments>(batch.sequence_offsets, at::Tensor(), at::kCPU);
      const models::MediaPlan plan(batch, segments, models::media_times(batch, test::kMedia), {},
                                   at::kMeta);
      ASSERT_NE(plan.packed(), nullptr);
      EXPECT_LE(plan.packed()->tokens.longest, segments->longest())
          << pages->size() << (round ? " pages, rounded" : " pages");
    }
}

TEST(BucketSize, GrowsByAnEighthAtMost) {
  for (std::int64_t size = 0; size < 100'000; ++size) {
    const std::int64_t bucket = bucket_size(size);
    ASSERT_GE(bucket, size);
    ASSERT_LE(bucket - size, std::max<std::int64_t>(15, size / 8));
    ASSERT_EQ(bucket_size(bucket), bucket);
  }
}

}  // namespace
}  // namespace floe::rounded_test
