// Metrics against the packages that define them: tests/eval/make_goldens.py wrote what those say.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "floe/core/error.h"
#include "floe/eval/metrics/cider.h"
#include "floe/eval/metrics/ptb_words.h"
#include "floe/eval/metrics/ranking.h"
#include "floe/eval/metrics/spread.h"
#include "floe/eval/metrics/vqa_accuracy.h"
#include "floe/io/file/file.h"

namespace floe::eval::eval_metrics_test {
namespace {

nlohmann::json golden(const std::string& name) {
  const std::string folder = std::string(std::getenv("FLOE_SOURCE_DIR")) + "/tests/eval/goldens/";
  return nlohmann::json::parse(read_text(folder + name + ".json", 1 << 24));
}

TEST(PtbWords, AreStanfords) {
  int cases = 0;
  for (const auto& one : golden("ptb")) {
    const auto caption = one["caption"].get<std::string>();
    EXPECT_EQ(ptb_words(caption), one["words"].get<std::vector<std::string>>()) << caption;
    ++cases;
  }
  EXPECT_GT(cases, 300);
}

TEST(PtbWords, TakeAnyBytes) {
  EXPECT_EQ(ptb_words("a \xff\xfe dog's").back(), "'s");
  EXPECT_TRUE(ptb_words("").empty());
  EXPECT_TRUE(ptb_words(" .,;- ").empty());
  // What Stanford's tokenizer calls untokenizable is left out and parts words.
  EXPECT_EQ(ptb_words("a\uFFFDdog \u200b\u2010\u3010\U0001F600 \u2764\uFE0F cat"),
            (Words{"a", "dog", "\u2764", "cat"}));
  constexpr std::string_view kMarks = " a.'-n1&<>()\"/:!\xe2\x80\x99Z";
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (int k = 0; k < 12; ++k) text += kMarks[random() % kMarks.size()];
    for (const std::string& word : ptb_words(text)) EXPECT_FALSE(word.empty());
  }
}

TEST(Cider, IsThatOfPycocoevalcap) {
  for (const auto& one : golden("cider")) {
    std::vector<Captioned> images;
    for (const auto& image : one["images"]) {
      Captioned& next = images.emplace_back();
      next.caption = ptb_words(image["caption"].get<std::string>());
      for (const auto& reference : image["references"])
        next.references.push_back(ptb_words(reference.get<std::string>()));
    }
    const CiderScores scores = cider(images);
    EXPECT_NEAR(scores.mean, one["mean"].get<double>(), 1e-9);
    ASSERT_EQ(scores.each.size(), one["each"].size());
    for (std::size_t i = 0; i < scores.each.size(); ++i)
      EXPECT_NEAR(scores.each[i], one["each"][i].get<double>(), 1e-9);
  }
}

TEST(Cider, OfNothing) {
  EXPECT_EQ(cider({}).mean, 0);
  EXPECT_THROW(cider({{{"a"}, {}}}), DataError);
}

TEST(VqaAccuracy, NormalisesAsTheReference) {
  const nlohmann::json all = golden("vqa");
  EXPECT_GT(all["normal"].size(), 200);
  for (const auto& one : all["normal"])
    EXPECT_EQ(normalised_answer(one["answer"].get<std::string>()), one["normal"].get<std::string>())
        << one["answer"];
}

TEST(VqaAccuracy, IsThatOfOpenFlamingo) {
  const nlohmann::json all = golden("vqa");
  double sum = 0;
  for (const auto& one : all["cases"]) {
    std::vector<GivenAnswer> given;
    for (nlohmann::json answer : one["answers"]) {
      const auto text = answer["answer"].get<std::string>();
      answer.erase("answer");
      given.push_back({text, answer.dump()});
    }
    const double accuracy = vqa_accuracy(one["said"].get<std::string>(), given);
    EXPECT_NEAR(100 * accuracy, one["accuracy"].get<double>(), 1e-9) << one;
    sum += accuracy;
  }
  const auto count = static_cast<double>(all["cases"].size());
  EXPECT_NEAR(100 * sum / count, all["overall"].get<double>(), 0.0051);  // rounded there
  EXPECT_EQ(vqa_accuracy("yes", {}), 0);
}

TEST(RocAuc, CountsPairs) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    std::vector<double> scores;
    std::vector<bool> positive{true, false};
    for (int i = 0; i < 40; ++i) scores.push_back(static_cast<double>(random() % 9));  // with ties
    while (positive.size() < scores.size()) positive.push_back(random() % 3 == 0);
    double right = 0, pairs = 0;
    for (std::size_t p = 0; p < scores.size(); ++p)
      for (std::size_t n = 0; n < scores.size(); ++n)
        if (positive[p] && !positive[n]) {
          right += scores[p] > scores[n] ? 1 : scores[p] == scores[n] ? 0.5 : 0;
          ++pairs;
        }
    EXPECT_NEAR(roc_auc(scores, positive), right / pairs, 1e-12);
  }
  EXPECT_EQ(roc_auc(std::vector<double>{1, 2}, {false, true}), 1);
  EXPECT_EQ(roc_auc(std::vector<double>{2, 1}, {false, true}), 0);
  EXPECT_TRUE(std::isnan(roc_auc(std::vector<double>{1, 2}, {true, true})));
}

TEST(Softmax, SumsToOne) {
  const auto shares = softmax(std::vector<double>{-1000, -1000 + std::log(3.0)});
  EXPECT_NEAR(shares[0], 0.25, 1e-12);
  EXPECT_NEAR(shares[1], 0.75, 1e-12);
  EXPECT_TRUE(softmax({}).empty());
}

TEST(Spread, HasStudentsInterval) {
  for (const auto& one : golden("student"))
    EXPECT_NEAR(student_quantile(one["share"], one["freedom"]), one["value"].get<double>(),
                1e-8 * one["value"].get<double>());
  const Spread spread = spread_of(std::vector<double>{1, 2, std::nan(""), 6});
  EXPECT_NEAR(spread.mean, 3, 1e-12);
  EXPECT_NEAR(spread.stddev, std::sqrt(14.0 / 3), 1e-12);
  EXPECT_NEAR(*spread.half_width, 4.302652729911 * std::sqrt(7.0 / 3), 1e-8);
  EXPECT_FALSE(spread_of(std::vector<double>{4}).half_width);
  EXPECT_TRUE(std::isnan(spread_of({}).mean));
}

}  // namespace
}  // namespace floe::eval::eval_metrics_test
