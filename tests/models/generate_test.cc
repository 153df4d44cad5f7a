// Generation from within: cached media of the goldens, OpenFlamingo's memory of images, sampling.
#include "floe/generation/generate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "floe/core/error.h"
#include "floe/generation/token_choice.h"
#include "tests/models/golden.h"

namespace floe::test::generate_test {
namespace {

using generation::GenerateSession;
using generation::Prompt;

std::vector<std::int64_t> row(const at::Tensor& ids, std::int64_t index) {
  const at::Tensor one = ids[index].contiguous();
  return {one.const_data_ptr<std::int64_t>(), one.const_data_ptr<std::int64_t>() + one.numel()};
}

std::vector<std::int64_t> column(const at::Tensor& ids, std::int64_t index) {
  return row(ids.t().contiguous(), index);
}

// Logits [B, T, V] of rows without cache, with these media times.
at::Tensor full_logits(models::LanguageModel& model, const at::Tensor& ids,
                       const at::Tensor& images, const at::Tensor& times) {
  const at::AutoGradMode no_gradients(false);
  models::InputOptions how;
  if (times.defined()) how.media_times = times.reshape({-1}).contiguous();
  const PackedBatch batch =
      models::from_rows(ids, at::ones_like(ids), {}, images, /*keep_padding=*/false);
  const at::Tensor logits = models::all_logits(model, models::prepare(model, batch, how));
  return logits.view({ids.size(0), ids.size(1), -1});
}

std::vector<Prompt> prompts_of(const at::Tensor& ids, const at::Tensor& images) {
  std::vector<Prompt> prompts;
  for (std::int64_t b = 0; b < ids.size(0); ++b) prompts.push_back({row(ids, b), images[b]});
  return prompts;
}

class CachedMedia : public testing::TestWithParam<std::string> {};

TEST_P(CachedMedia, EqualsGoldens) {
  const GoldenModel golden = whole_golden_model(GetParam());
  const auto tensors = golden_tensors(GetParam() + "/cached_media.safetensors");
  const at::Tensor prompt = tensors.at("prompt_ids"), more = tensors.at("continuation_ids");
  const at::Tensor images = (tensors.at("vision_x_i8").to(at::kFloat) / 64).squeeze(2);
  const double bound = 2e-5 * std::max(1.0, tensors.at("prompt_logits").abs().max().item<double>());

  const at::Tensor all = full_logits(golden.model(), at::cat({prompt, more}, 1), images, {});
  EXPECT_LE(largest_difference(all, tensors.at("full_sequence_logits")), bound);

  GenerateSession session(golden.model(), prompts_of(prompt, images), at::kCPU, at::kFloat);
  const at::Tensor after_prompt = session.start();
  EXPECT_LE(largest_difference(after_prompt, tensors.at("prompt_logits").select(1, -1)), bound);
  for (std::int64_t i = 0; i < more.size(1); ++i) {
    const at::Tensor logits = session.step(column(more, i));
    EXPECT_LE(
        largest_difference(logits, tensors.at("continuation_logits_with_kv_cache").select(1, i)),
        bound);
  }

  // Without cache the continuation stands alone, and still sees the images of the prompt.
  const at::Tensor times =
      prompt.eq(golden.model().media_token()).sum(1, /*keepdim=*/true).expand(more.sizes());
  const at::Tensor alone = full_logits(golden.model(), more, images, times);
  EXPECT_LE(largest_difference(alone, tensors.at("continuation_logits_without_kv_cache")), bound);
}

// Note [Remembered images]: after a step in which one row says <image>, the others see none.
TEST_P(CachedMedia, GeneratedImageTokensAreRememberedForAll) {
  const GoldenModel golden = whole_golden_model(GetParam());
  const auto tensors = golden_tensors(GetParam() + "/cached_media.safetensors");
  const at::Tensor prompt = tensors.at("prompt_ids");
  const at::Tensor images = (tensors.at("vision_x_i8").to(at::kFloat) / 64).squeeze(2);
  at::Tensor more = tensors.at("continuation_ids").clone();
  more[1][2] = golden.model().media_token();

  at::Tensor times = at::zeros_like(at::cat({prompt, more}, 1));
  const std::int64_t length = prompt.size(1);
  times.narrow(1, 0, length) = prompt.eq(golden.model().media_token()).cumsum(1);
  times.narrow(1, length, 2) = times.narrow(1, length - 1, 1);
  times[1].narrow(0, length + 2, 3).fill_(1);  // row 0 keeps 0

  const at::Tensor expected =
      full_logits(golden.model(), at::cat({prompt, more}, 1), images, times);
  GenerateSession session(golden.model(), prompts_of(prompt, images), at::kCPU, at::kFloat);
  session.start();
  for (std::int64_t i = 0; i < more.size(1); ++i)
    EXPECT_LE(largest_difference(session.step(column(more, i)), expected.select(1, length + i)),
              1e-4);
}

TEST_P(CachedMedia, SequencesSplitMoveAndLeave) {
  const GoldenModel golden = whole_golden_model(GetParam());
  const auto tensors = golden_tensors(GetParam() + "/cached_media.safetensors");
  const at::Tensor prompt = tensors.at("prompt_ids"), more = tensors.at("continuation_ids");
  const at::Tensor images = (tensors.at("vision_x_i8").to(at::kFloat) / 64).squeeze(2);
  GenerateSession session(golden.model(), prompts_of(prompt, images), at::kCPU, at::kFloat);
  session.start();
  session.repeat(2);  // 0 0 1 1
  EXPECT_EQ(session.sequences(), 4);
  const auto token = [&](std::int64_t b, std::int64_t i) {
    return more[b][i].item<std::int64_t>();
  };
  session.step({token(0, 0), token(0, 1), token(1, 0), token(1, 1)});
  session.reorder({0, 0, 2, 2});  // the second of each pair is given up
  session.keep({2, 0});
  const at::Tensor logits = session.step({token(1, 1), token(0, 1)});
  const at::Tensor expected = tensors.at("continuation_logits_with_kv_cache").select(1, 1).flip(0);
  EXPECT_LE(largest_difference(logits, expected), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Goldens, CachedMedia, testing::Values("opt_x1", "neox_x2"));

// Chi-square of counts against chances, in standard deviations above its mean.
double surprise(const std::map<std::vector<std::int64_t>, int>& counts,
                const std::map<std::vector<std::int64_t>, double>& chances, int draws) {
  double chi = 0;
  for (const auto& [outcome, chance] : chances) {
    const auto found = counts.find(outcome);
    const double count = found == counts.end() ? 0 : found->second;
    chi += std::pow(count - draws * chance, 2) / (draws * chance);
  }
  const double freedom = static_cast<double>(chances.size()) - 1;
  return (chi - freedom) / std::sqrt(2 * freedom);
}

TEST(Sampler, DrawsInProportion) {
  const std::vector<float> weights{0.5F, 0.2F, 0.15F, 0.1F, 0.05F};
  std::vector<float> logs;
  for (const float weight : weights) logs.push_back(std::log(weight) + 3);  // no norm is needed
  logs.push_back(-INFINITY);
  std::map<std::vector<std::int64_t>, double> single, pairs;
  for (std::int64_t a = 0; a < 5; ++a) {
    const double first = weights[static_cast<std::size_t>(a)];
    single[{a}] = first;
    for (std::int64_t b = 0; b < 5; ++b)
      if (a != b) pairs[{a, b}] = first * weights[static_cast<std::size_t>(b)] / (1 - first);
  }
  constexpr int kDraws = 40'000;
  const generation::Sampler sampler(7);
  std::map<std::vector<std::int64_t>, int> ones, twos, streams;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    ++ones[sampler.draw(logs, 1, 0, i)];
    ++streams[sampler.draw(logs, 1, i, 3)];
    ++twos[sampler.draw(logs, 2, 1, i)];
  }
  EXPECT_EQ(ones.size(), 5U);
  EXPECT_LT(surprise(ones, single, kDraws), 4);
  EXPECT_LT(surprise(streams, single, kDraws), 4);
  EXPECT_LT(surprise(twos, pairs, kDraws), 4);
}

TEST(Sampler, RepeatsAndDependsOnTheSeed) {
  std::vector<float> flat(1000, 0.0F);
  EXPECT_EQ(generation::Sampler(1).draw(flat, 5, 2, 3), generation::Sampler(1).draw(flat, 5, 2, 3));
  EXPECT_NE(generation::Sampler(1).draw(flat, 5, 2, 3), generation::Sampler(2).draw(flat, 5, 2, 3));
  EXPECT_NE(generation::Sampler(1).draw(flat, 5, 2, 3), generation::Sampler(1).draw(flat, 5, 3, 3));
  EXPECT_NE(generation::Sampler(1).draw(flat, 5, 2, 3), generation::Sampler(1).draw(flat, 5, 2, 4));
  // The same on every machine: computed from the definition of the numbers in another language.
  EXPECT_EQ(generation::Sampler(1).draw(flat, 5, 2, 3),
            (std::vector<std::int64_t>{315, 895, 576, 471, 445}));
}

TEST(Sampler, ImpossiblePlacesComeLast) {
  const std::vector<float> logs{-INFINITY, 0, -INFINITY, 1, -1e9F};
  for (std::uint64_t step = 0; step < 50; ++step) {
    const auto all = generation::Sampler(0).draw(logs, 5, 0, step);
    EXPECT_EQ(std::vector<std::int64_t>(all.begin() + 2, all.end()),
              (std::vector<std::int64_t>{4, 0, 2}));
  }
}

TEST(LogitsRules, SamplingKeepsTheLikeliest) {
  generation::GenerateOptions options;
  options.sample = true;
  options.temperature = 0.5;
  options.top_k = 3;
  const std::vector<std::vector<std::int64_t>> no_text(1);
  at::Tensor scores = at::tensor({1.0F, 4.0F, 2.0F, 3.0F, -1.0F}).view({1, 5});
  generation::LogitsRules(options).apply(scores, no_text, 0);
  const float never = -INFINITY;
  EXPECT_TRUE(at::equal(scores, at::tensor({never, 8.0F, 4.0F, 6.0F, never}).view({1, 5})));

  // Chances 0.6, 0.3, 0.1: 0.55 and 0.6 need one, 0.65 and 0.9 two, 0.95 all.
  for (const auto& [share, kept] :
       std::map<double, int>{{0.55, 1}, {0.65, 2}, {0.85, 2}, {0.95, 3}}) {
    generation::GenerateOptions by_share;
    by_share.sample = true;
    by_share.top_p = share;
    at::Tensor logs = at::tensor({0.1F, 0.6F, 0.3F}).log().view({1, 3});
    generation::LogitsRules(by_share).apply(logs, no_text, 0);
    EXPECT_EQ(logs.isfinite().sum().item<int>(), kept) << share;
  }
}

TEST(GenerateOptions, RefusesWhatMakesNoSense) {
  const auto refused = [](const auto& change) {
    generation::GenerateOptions options;
    change(options);
    EXPECT_THROW(options.validate(), ConfigError);
  };
  refused([](auto& o) { o.max_new_tokens = 0; });
  refused([](auto& o) { o.min_new_tokens = o.max_new_tokens + 1; });
  refused([](auto& o) { o.num_beams = 0; });
  refused([](auto& o) { o.num_return_sequences = 2; });
  refused([](auto& o) { o.num_beams = 2, o.num_return_sequences = 3; });
  refused([](auto& o) { o.temperature = 0; });
  refused([](auto& o) { o.temperature = NAN; });
  refused([](auto& o) { o.top_p = 0; });
  refused([](auto& o) { o.top_p = 1.5; });
  refused([](auto& o) { o.repetition_penalty = 0; });
  EXPECT_NO_THROW(generation::GenerateOptions().validate());
}

}  // namespace
}  // namespace floe::test::generate_test
