// One gated block on its own, in every case of the goldens: which images a token looks at.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "floe/core/str.h"
#include "floe/models/flamingo/gated_cross_attention.h"
#include "tests/models/golden.h"

namespace floe::gated_cases_test {
namespace {

std::shared_ptr<models::GatedCrossAttention> golden_gate(const std::string& name, int layer) {
  const auto config = test::golden_json(name + "/config.json");
  const auto& sizes = config["gated_cross_attn"];
  auto gate = std::make_shared<models::GatedCrossAttention>(
      config["lang_dim"].get<std::int64_t>(), config["vis_dim"].get<std::int64_t>(),
      models::CrossAttentionSpec{sizes["dim_head"].get<std::int64_t>(),
                                 sizes["heads"].get<std::int64_t>(),
                                 sizes["ff_mult"].get<std::int64_t>()});
  const auto weights = test::golden_tensors(name + "/flamingo_init.safetensors");
  nn::materialize(*gate, 0);
  const at::NoGradGuard no_grad;
  for (auto& parameter : nn::named_parameters(*gate))
    parameter.tensor.copy_(
        weights.at(str("lang_encoder.", config["decoder_layers_attr"].get<std::string>(), ".",
                       layer, ".gated_cross_attn_layer.", parameter.name)));
  return gate;
}

// Rows of equal length, `images` each; ids are 1 where `locations` marks an image.
PackedBatch rows_of(const at::Tensor& locations, std::int64_t length, std::int64_t images) {
  const std::int64_t rows = locations.size(0);
  PackedBatch batch;
  batch.ids = locations.size(1) == length ? locations.to(at::kLong).reshape({-1})
                                          : at::zeros({rows * length}, at::kLong);
  batch.positions = at::arange(length, at::kLong).repeat({rows});
  batch.labels = at::full_like(batch.ids, kNoLabel);
  batch.source = at::zeros({rows}, at::kLong);
  batch.sequence_offsets = at::arange(rows + 1, at::kLong) * length;
  batch.image_offsets = at::arange(rows + 1, at::kLong) * images;
  batch.images = at::zeros({rows * images, 3, 1, 1});
  batch.sample_keys.assign(static_cast<std::size_t>(rows), "row");
  batch.validate();
  return batch;
}

void check_cases(const std::string& name) {
  const auto cases = test::golden_json(name + "/gated_cases.json");
  const auto tensors = test::golden_tensors(name + "/gated_cases.safetensors");
  const auto gate = golden_gate(name, cases["layer_index"].get<int>());
  ASSERT_GE(cases["cases"].size(), 9U);
  for (const auto& [key, rule] : cases["cases"].items()) {
    SCOPED_TRACE(name + ": " + key);
    const at::Tensor x = tensors.at(rule["x"].get<std::string>());
    const at::Tensor media = tensors.at(rule["media"].get<std::string>());
    const std::int64_t length = x.size(1), images = media.size(1);
    // Without locations nothing is masked: as if all images had been before all text.
    const bool masked = !rule["media_locations"].is_null();
    const at::Tensor locations = masked ? tensors.at(rule["media_locations"].get<std::string>())
                                        : at::ones({x.size(0), images}, at::kLong);
    const PackedBatch batch = rows_of(locations, length, images);
    at::Tensor times = models::media_times(batch, 1);
    if (rule["use_cached_media"].get<bool>())
      times = locations.to(at::kLong)
                  .sum(1, /*keepdim=*/true)
                  .expand({-1, length})
                  .reshape({-1})
                  .contiguous();
    const bool immediate = masked && rule["only_attend_immediate_media"].get<bool>();
    const auto segments =
        std::make_shared<const nn::Segments>(batch.sequence_offsets, at::Tensor(), at::kCPU);
    const auto plan = std::make_shared<const models::MediaPlan>(
        batch, segments, times, models::MediaPlan::Rule{immediate}, at::kCPU);
    EXPECT_FALSE(plan->needs_zero_image());

    const at::Tensor tokens = x.flatten(0, 1), encoded = media.flatten(0, 1);
    const at::Tensor out = gate->forward(tokens, encoded, plan).view(x.sizes());
    const at::Tensor attended = gate->attend(tokens, encoded, *plan).view(x.sizes());
    EXPECT_LE(test::largest_difference(out, tensors.at(key + ".out")), 5e-6);
    EXPECT_LE(test::largest_difference(attended, tensors.at(key + ".attn_only_out")), 5e-6);
    // Where the reference gives exactly nothing, so do we.
    EXPECT_TRUE(
        attended.masked_select(tensors.at(key + ".attn_only_out").eq(0)).eq(0).all().item<bool>());
  }
}

TEST(GatedCases, Opt) { check_cases("opt_x1"); }
TEST(GatedCases, GptNeoX) { check_cases("neox_x2"); }

// Each row alone gives what it gives among others of another length: buckets keep rows apart.
TEST(GatedCases, RowsOfDifferentLengthStayApart) {
  const auto gate = golden_gate("opt_x1", 0);
  at::manual_seed(3);
  const std::vector<std::int64_t> lengths{5, 70, 33, 1, 40};
  const at::Tensor media = at::randn({10, 6, 32});
  std::vector<at::Tensor> texts, alone;
  PackedBatch all;
  const auto row_batch = [](std::int64_t length) {
    at::Tensor locations = at::zeros({1, length}, at::kLong);
    for (std::int64_t i = 1; i < length; i += 4) locations[0][i] = 1;
    return rows_of(locations, length, 2);
  };
  const auto look = [&](const PackedBatch& batch, const at::Tensor& x, const at::Tensor& seen) {
    const auto segments =
        std::make_shared<const nn::Segments>(batch.sequence_offsets, at::Tensor(), at::kCPU);
    return gate->forward(
        x, seen,
        std::make_shared<const models::MediaPlan>(batch, segments, models::media_times(batch, 1),
                                                  models::MediaPlan::Rule(), at::kCPU));
  };
  for (std::size_t row = 0; row < lengths.size(); ++row) {
    texts.push_back(at::randn({lengths[row], 48}));
    const PackedBatch one = row_batch(lengths[row]);
    all = row == 0 ? one : models::concatenate(all, one);
    alone.push_back(
        look(one, texts.back(), media.narrow(0, 2 * static_cast<std::int64_t>(row), 2)));
  }
  EXPECT_LE(test::largest_difference(look(all, at::cat(texts), media), at::cat(alone)), 2e-6);
}

}  // namespace
}  // namespace floe::gated_cases_test
