// Many prompts at once give what each gives alone, and scores of candidates are those of the whole
// text.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "floe/core/error.h"
#include "floe/generation/batching.h"
#include "floe/generation/generate.h"
#include "floe/generation/score.h"
#include "floe/nn/load.h"
#include "tests/models/small_models.h"

namespace floe::batched_generation_test {
namespace {

using generation::GenerateOptions;
using generation::GenerateSession;
using generation::Prompt;
using generation::RequestSize;
using test::kEndOfChunk;
using test::kMedia;
using test::kSmallVocabulary;

// Weights that are large enough for texts to differ, with open gates.
std::unique_ptr<models::Flamingo> lively_flamingo(const nlohmann::json& lm, bool only_immediate,
                                                  at::ScalarType dtype = at::kFloat) {
  models::FlamingoSpec spec = test::small_flamingo(lm);
  spec.only_immediate_media = only_immediate;
  auto model = std::make_unique<models::Flamingo>(spec);
  nn::materialize(*model, nullptr, 5, at::kCPU, dtype);
  const at::AutoGradMode no_gradients(false);
  for (const auto& parameter : nn::named_parameters(*model)) {
    at::Tensor tensor = parameter.tensor;
    if (parameter.name.ends_with("_gate")) tensor.fill_(0.7);
    if (tensor.dim() == 2 && parameter.name.starts_with("lang_encoder")) tensor.mul_(6);
  }
  model->eval();
  return model;
}

Prompt random_prompt(std::mt19937& random) {
  const auto below = [&](int n) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(n));
  };
  Prompt prompt;
  const std::int64_t images = below(4);
  for (std::int64_t i = 0; i < images; ++i) {
    const std::int64_t before = i == 0 ? below(3) : below(9);
    for (std::int64_t t = 0; t < before; ++t) prompt.ids.push_back(below(kMedia));
    prompt.ids.push_back(kMedia);
  }
  const std::int64_t behind = 1 + (below(3) == 0 ? below(60) : below(9));
  for (std::int64_t t = 0; t < behind; ++t) prompt.ids.push_back(below(kMedia));
  if (images > 0) prompt.images = at::randn({images, 3, 28, 28});
  return prompt;
}

std::vector<GenerateOptions> ways() {
  std::vector<GenerateOptions> all(6);
  for (GenerateOptions& options : all) {
    options.max_new_tokens = 9;
    options.eos = {kEndOfChunk};
    for (std::int64_t id = 3; id < kMedia; id += 8) options.eos.push_back(id);
  }
  all[1].repetition_penalty = 1.4, all[1].no_repeat_ngram = 2, all[1].min_new_tokens = 3;
  all[2].num_beams = 3;
  all[3].num_beams = 2, all[3].early_stopping = generation::EarlyStopping::yes;
  all[3].num_return_sequences = 2, all[3].no_repeat_ngram = 1;
  all[4].sample = true, all[4].num_return_sequences = 2, all[4].top_k = 20;
  all[5].sample = true, all[5].num_beams = 3,
  all[5].early_stopping = generation::EarlyStopping::never;
  return all;
}

// What a prompt gives without others.
std::vector<generation::Generated> alone(models::LanguageModel& model, const Prompt& prompt,
                                         std::uint64_t stream, const GenerateOptions& options) {
  if (!options.sample) return generation::generate(model, {prompt}, options, at::kCPU, at::kFloat);
  return generation::generate_each(model, {prompt}, {stream}, options, at::kCPU, at::kFloat);
}

struct Case {
  const nlohmann::json* lm;
  bool only_immediate, whole_text;
};
class BatchedGeneration : public testing::TestWithParam<Case> {};

TEST_P(BatchedGeneration, GivesWhatEachPromptGivesAlone) {
  const auto model = lively_flamingo(*GetParam().lm, GetParam().only_immediate);
  std::mt19937 random(7);
  at::manual_seed(7);
  std::size_t ends = 0, texts = 0;
  for (GenerateOptions options : ways()) {
    options.images_of_whole_text = GetParam().whole_text;
    std::vector<Prompt> prompts;
    std::vector<RequestSize> sizes;
    for (int p = 0; p < 7; ++p) {
      prompts.push_back(random_prompt(random));
      sizes.push_back({options.num_beams > 1 ? options.num_beams : options.num_return_sequences,
                       std::ssize(prompts.back().ids) + options.max_new_tokens,
                       prompts.back().images.defined() ? prompts.back().images.size(0) : 0});
    }
    // From nearly one at a time to all at once.
    const std::int64_t budget = std::int64_t{200} << (random() % 6);
    for (const auto& batch : generation::make_batches(sizes, budget)) {
      std::vector<Prompt> together;
      std::vector<std::uint64_t> streams;
      for (const std::size_t p : batch) {
        together.push_back(prompts[p]);
        streams.push_back(p + 100);
      }
      const auto found =
          generation::generate_each(*model, together, streams, options, at::kCPU, at::kFloat);
      auto next = found.begin();
      for (std::size_t b = 0; b < batch.size(); ++b)
        for (const auto& expected : alone(*model, together[b], streams[b], options)) {
          ASSERT_NE(next, found.end());
          EXPECT_EQ(next->prompt, b);
          EXPECT_EQ(next->ids, expected.ids) << "prompt " << batch[b] << " of " << batch.size();
          ASSERT_EQ(next->score.has_value(), expected.score.has_value());
          EXPECT_NEAR(next->score.value_or(0), expected.score.value_or(0), 1e-4);
          ends += std::ssize(next->ids) < options.max_new_tokens;
          ++texts;
          ++next;
        }
      EXPECT_EQ(next, found.end());
    }
  }
  // Else nothing is shown: texts of several lengths.
  EXPECT_GT(ends, texts / 10);
  EXPECT_LT(ends, texts);
}

TEST_P(BatchedGeneration, DrawsAreThoseOfThePromptsNumber) {
  const auto model = lively_flamingo(*GetParam().lm, GetParam().only_immediate);
  std::mt19937 random(5);
  const Prompt prompt = random_prompt(random);
  for (GenerateOptions options : ways()) {
    options.eos = {};  // short texts may be equal by chance
    const auto first = generation::generate(*model, {prompt}, options, at::kCPU, at::kFloat);
    const auto ids = [&](std::uint64_t stream) {
      return generation::generate_each(*model, {prompt}, {stream}, options, at::kCPU, at::kFloat)[0]
          .ids;
    };
    EXPECT_EQ(ids(0), first[0].ids);
    EXPECT_EQ(ids(1) == first[0].ids, !options.sample);
  }
}

// A generated <image> changes what others of the batch see in OpenFlamingo, but not here.
TEST_P(BatchedGeneration, GeneratedImagesAreNobodyElsesBusiness) {
  const auto model = lively_flamingo(*GetParam().lm, GetParam().only_immediate);
  std::mt19937 random(3);
  at::manual_seed(3);
  std::vector<Prompt> prompts;
  while (prompts.size() < 2)
    if (Prompt prompt = random_prompt(random); prompt.images.defined()) prompts.push_back(prompt);
  const generation::SessionOptions how{.images_of_whole_text = GetParam().whole_text,
                                       .company = generation::Company::each_alone};
  GenerateSession both(*model, prompts, at::kCPU, at::kFloat, how);
  GenerateSession first(*model, {prompts[0]}, at::kCPU, at::kFloat, how);
  both.start();
  first.start();
  for (const std::int64_t other : {kMedia, std::int64_t{5}}) {
    const at::Tensor found = both.step({7, other})[0], expected = first.step({7})[0];
    EXPECT_LT((found - expected).abs().max().item<double>(), 1e-4);
  }
}

TEST_P(BatchedGeneration, ImagesAreProjectedOnce) {
  const auto model = lively_flamingo(*GetParam().lm, GetParam().only_immediate);
  Prompt prompt{{kMedia, 5, 6}, at::ones({1, 3, 28, 28})};
  const auto second = [&](bool spoil) {
    GenerateSession session(*model, {prompt}, at::kCPU, at::kFloat);
    session.start();
    const at::AutoGradMode no_gradients(false);
    std::map<std::string, at::Tensor> before;
    for (const auto& parameter : nn::named_parameters(*model))
      if (spoil && parameter.name.find(".gated_cross_attn_layer.attn.to_kv") != std::string::npos) {
        before[parameter.name] = parameter.tensor.clone();
        at::Tensor(parameter.tensor).fill_(NAN);
      }
    EXPECT_EQ(before.empty(), !spoil);
    const at::Tensor logits = session.step({9});
    for (const auto& parameter : nn::named_parameters(*model))
      if (before.contains(parameter.name))
        at::Tensor(parameter.tensor).copy_(before[parameter.name]);
    return logits;
  };
  const at::Tensor expected = second(false);
  EXPECT_TRUE(at::equal(second(true), expected));
}

// The definition: log-softmax of the logits of prompt and candidate in one pass.
double by_whole_text(models::LanguageModel& model, const Prompt& prompt,
                     const std::vector<std::int64_t>& candidate) {
  const at::AutoGradMode no_gradients(false);
  std::vector<std::int64_t> whole = prompt.ids;
  whole.insert(whole.end(), candidate.begin(), candidate.end());
  const at::Tensor ids = at::tensor(whole, at::kLong).unsqueeze(0);
  const at::Tensor images = prompt.images.defined() ? prompt.images.unsqueeze(0) : at::Tensor();
  const PackedBatch batch = models::from_rows(ids, at::ones_like(ids), {}, images, false);
  const at::Tensor logits =
      models::all_logits(model, models::prepare(model, batch, {})).to(at::kDouble).log_softmax(-1);
  double sum = 0;
  for (std::size_t t = 0; t < candidate.size(); ++t)
    sum +=
        logits[static_cast<std::int64_t>(prompt.ids.size() + t) - 1][candidate[t]].item<double>();
  return sum;
}

std::vector<generation::ScoreRequest> random_requests() {
  std::mt19937 random(11);
  at::manual_seed(11);
  std::vector<generation::ScoreRequest> requests;
  for (int r = 0; r < 7; ++r) {
    generation::ScoreRequest request{random_prompt(random), {}};
    request.candidates.resize(1 + random() % 4);
    for (auto& ids : request.candidates) {
      // Also of one token, and longer than a bucket of attention.
      const std::size_t length = random() % 3 == 0 ? 1 : 1 + random() % 40;
      for (std::size_t t = 0; t < length; ++t)
        ids.push_back(static_cast<std::int64_t>(random() % (kSmallVocabulary - 2)));
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST_P(BatchedGeneration, ScoresAreThoseOfTheWholeText) {
  const auto model = lively_flamingo(*GetParam().lm, GetParam().only_immediate);
  std::vector<generation::ScoreRequest> requests = random_requests();
  const auto with_image = std::find_if(requests.begin(), requests.end(), [](const auto& request) {
    return request.prompt.images.defined();
  });
  ASSERT_NE(with_image, requests.end());
  with_image->candidates[0] = {4, kMedia, 8};
  for (const std::int64_t budget : {1, 300, 100'000}) {
    const auto scores = generation::score(*model, requests, budget, at::kCPU, at::kFloat);
    ASSERT_EQ(scores.size(), requests.size());
    for (std::size_t r = 0; r < requests.size(); ++r) {
      ASSERT_EQ(scores[r].size(), requests[r].candidates.size());
      for (std::size_t c = 0; c < scores[r].size(); ++c) {
        const auto& candidate = requests[r].candidates[c];
        const double expected = by_whole_text(*model, requests[r].prompt, candidate);
        EXPECT_NEAR(scores[r][c].log_prob, expected, 2e-5 * std::abs(expected) + 1e-4);
        EXPECT_EQ(scores[r][c].tokens, std::ssize(candidate));
        EXPECT_DOUBLE_EQ(scores[r][c].per_token(),
                         scores[r][c].log_prob / static_cast<double>(candidate.size()));
      }
    }
  }
}

// The bound of docs/evaluation.md: in bf16 the company of others changes a score by no more than
// half precision itself does.
TEST_P(BatchedGeneration, HalfPrecisionRoundsInABatchAsItDoesAlone) {
  const auto scores = [&](at::ScalarType dtype, std::int64_t budget) {
    const auto model = lively_flamingo(*GetParam().lm, GetParam().only_immediate, dtype);
    std::vector<double> means;
    for (const auto& request :
         generation::score(*model, random_requests(), budget, at::kCPU, dtype))
      for (const generation::CandidateScore& score : request) means.push_back(score.per_token());
    return means;
  };
  const auto difference = [](const std::vector<double>& a, const std::vector<double>& b) {
    double most = 0;
    for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
    return most;
  };
  const auto exact = scores(at::kFloat, 1), alone = scores(at::kBFloat16, 1),
             together = scores(at::kBFloat16, 100'000);
  ASSERT_EQ(exact.size(), together.size());
  EXPECT_LT(difference(together, alone), 0.03);
  EXPECT_LT(difference(together, alone), difference(alone, exact));
}

INSTANTIATE_TEST_SUITE_P(Models, BatchedGeneration,
                         testing::Values(Case{&test::kMpt, true, true},
                                         Case{&test::kNeox, true, false},
                                         Case{&test::kLlama, false, false}));

TEST(Score, RefusesWhatTheModelCannotRead) {
  const auto model = lively_flamingo(test::kNeox, true);
  const auto refused = [&](const generation::ScoreRequest& request) {
    EXPECT_THROW(generation::score(*model, {request}, 100, at::kCPU, at::kFloat), ConfigError);
  };
  refused({{{1, 2}, {}}, {}});
  refused({{{1, 2}, {}}, {{3}, {}}});
  refused({{{}, {}}, {{3}}});
  refused({{{1, 2}, {}}, {{kSmallVocabulary}}});
  refused({{{1, kMedia}, {}}, {{3}}});
  EXPECT_TRUE(generation::score(*model, {}, 100, at::kCPU, at::kFloat).empty());
}

TEST(MakeBatches, StayWithinTheBudget) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<RequestSize> sizes;
    const std::size_t requests = random() % 40;
    for (std::size_t r = 0; r < requests; ++r)
      sizes.push_back({1 + static_cast<std::int64_t>(random() % 5),
                       1 + static_cast<std::int64_t>(random() % 300),
                       static_cast<std::int64_t>(random() % 3)});
    const std::int64_t budget = 1 + static_cast<std::int64_t>(random() % 4000);
    std::vector<std::size_t> seen;
    for (const auto& batch : generation::make_batches(sizes, budget)) {
      ASSERT_FALSE(batch.empty());
      RequestSize all{0, 0, 0};
      for (const std::size_t r : batch) {
        all.sequences += sizes[r].sequences;
        all.images += sizes[r].images;
        all.length = std::max(all.length, sizes[r].length);
        seen.push_back(r);
      }
      EXPECT_TRUE(batch.size() == 1 || all.tokens() <= budget) << all.tokens();
    }
    std::sort(seen.begin(), seen.end());
    std::vector<std::size_t> every(sizes.size());
    std::iota(every.begin(), every.end(), 0);
    EXPECT_EQ(seen, every);
  }
  EXPECT_EQ(generation::make_batches({{1, 10, 0}, {1, 30, 0}, {1, 20, 0}}, 60),
            (std::vector<std::vector<std::size_t>>{{1, 2}, {0}}));
}

}  // namespace
}  // namespace floe::batched_generation_test
