#include <gtest/gtest.h>

#include <map>

#include "floe/core/label.h"
#include "floe/data/sources/sample_text.h"
#include "tests/data/goldens.h"

namespace floe::data::labels_test {
namespace {

using Spans = std::vector<std::pair<std::size_t, std::size_t>>;

Spans spans_of(const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& labels) {
  Spans spans;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == kNoLabel) continue;
    EXPECT_EQ(labels[i], ids[i]);
    if (spans.empty() || spans.back().second != i) spans.emplace_back(i, i);
    spans.back().second = i + 1;
  }
  return spans;
}

// Of the tokenizers in tests/goldens/data.
const std::map<std::string, token::FlamingoTokens> kTokens{{"neox", {3024, 3023, 3025, 0, 3026}},
                                                           {"opt", {3001, 3000, 1, 2, 3002}},
                                                           {"llama", {2501, 2500, 2502, 2, 2503}}};

TEST(Labels, LaionGoldensOfTheTrainingLoop) {
  const auto all = golden("labels.json");
  int rows = 0;
  for (const auto& [name, sources] : all["tokenizers"].items()) {
    for (const auto& batch : sources["laion"]) {
      for (std::size_t i = 0; i < batch["input_ids"].size(); ++i, ++rows) {
        const auto ids = batch["input_ids"][i].get<std::vector<std::int32_t>>();
        std::vector<std::int32_t> labels(ids.size());
        laion_labels(ids, kTokens.at(name), labels);
        EXPECT_EQ(nlohmann::json(spans_of(ids, labels)), batch["label_spans"][i]) << name << i;
      }
    }
  }
  EXPECT_EQ(rows, 48);
}

TEST(Labels, Mmc4GoldensOfTheTrainingLoop) {
  const auto spans = golden("labels.json")["tokenizers"];
  const auto documents = golden("mmc4_docs.json");
  int rows = 0;
  for (const auto& document : documents["docs"]) {
    for (const auto& [name, result] : document["result"].items()) {
      const auto& expected = spans[name]["mmc4"];
      const std::string key = document["key"];
      if (!expected.contains(key)) continue;
      const auto ids = result["ids"].get<std::vector<std::int32_t>>();
      std::vector<std::int32_t> labels(ids.size());
      mmc4_labels(ids, kTokens.at(name), labels);
      EXPECT_EQ(nlohmann::json(spans_of(ids, labels)), expected[key]) << name << " " << key;
      ++rows;
    }
  }
  EXPECT_EQ(rows, 84);
}

TEST(Labels, NothingWithoutAnImage) {
  const token::FlamingoTokens tokens{7, 8, 9, 1, 10};
  const std::vector<std::int32_t> ids{2, 8, 3, 9};
  std::vector<std::int32_t> labels(4);
  mmc4_labels(ids, tokens, labels);
  EXPECT_EQ(labels, std::vector<std::int32_t>(4, kNoLabel));
}

}  // namespace
}  // namespace floe::data::labels_test
