// What is printed.
#include "floe/plan/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "floe/core/table.h"
#include "tests/config/expect_error.h"
#include "tests/plan/planned.h"

namespace floe::report_test {
namespace {

using test::expect_part;
using test::planned;

std::vector<std::string> labels(const shard::ShardPlan& plan) {
  std::vector<std::string> labels;
  for (const plan::UnitRow& row : plan::unit_rows(plan)) labels.push_back(row.label);
  return labels;
}

TEST(UnitRows, EqualUnitsAreOneRow) {
  using Labels = std::vector<std::string>;
  EXPECT_EQ(labels(planned({"train.trainable=['*']"}).plan), (Labels{"layers.0 … 2", "(root)"}));
  EXPECT_EQ(labels(planned().plan), (Labels{"layers.0", "layers.1 … 2", "(root)"}))
      << "backward does not need the frozen part of the first layer";
  EXPECT_EQ(labels(planned({"strategy.units=[Attention]", "train.trainable=['*']"}).plan),
            (Labels{"layers.0 … 2.attention", "(root)"}));
  EXPECT_EQ(labels(planned({"model.vocab=16384", "model.tied=true", "train.trainable=['*']"}).plan),
            (Labels{"embed", "layers.0 … 2", "head", "(root)"}));
}

TEST(Table, ColumnsLineUp) {
  Table table({Align::left, Align::right}, 2);
  table.row({"what", "n"});
  table.row({"a … b", "10"});
  table.row({"c"});
  EXPECT_EQ(table.text(),
            "what      n\n"
            "  a … b  10\n"
            "  c\n");
}

TEST(Report, TextSaysEverything) {
  const std::string text = to_text(planned());
  expect_part(text, "transformer with 883 parameters: 39 train (4.42%), 844 are frozen\n");
  expect_part(text, "4 ranks, full_shard, computes in fp32, reduces gradients in fp32\n");
  expect_part(text, "layers.1 … 2  2 × DecoderLayer  frozen          244  1.00 KiB     256 B");
  expect_part(
      text,
      "7 of 7 groups are padded to slices of whole 128 bytes: 397 zeros fill the last ones.\n");
  expect_part(text, "optimizer state (adamw)");
  expect_part(text, "without activations");
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 104U) << text.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(Report, TextNamesWhatIsSpecial) {
  expect_part(to_text(planned({"model.vocab=16384", "model.tied=true"})), "as in embed");
  expect_part(to_text(planned({"strategy.frozen.residency=resident"})),
              "resident frozen parameters");
  expect_part(to_text(planned({"strategy.cpu_offload=true"})), "of that in host memory");
  expect_part(to_text(planned({"strategy.sharding=hybrid", "strategy.hybrid_shard_size=2"})),
              "hybrid (slices over 2, 2 copies)");
  expect_part(to_text(planned({"strategy.frozen.sharding=node", "strategy.hybrid_shard_size=2"})),
              "full_shard (frozen: over 2, 2 copies)");
  const std::string four = to_text(planned({"train.gradient_accumulation=4"}));
  expect_part(four, "\n4 passes per update, whose gradients add up whole on each rank\n");
  expect_part(four, "Each rank moves per update of 4 passes");
  expect_part(to_text(planned({"train.gradient_accumulation=4", "strategy.accumulate=reduced"})),
              "\n4 passes per update, whose gradients add up in slices\n");
  expect_part(to_text(planned({"world=1"})), "One rank alone moves nothing; world=N plans for N.");
  expect_part(to_text(planned({"train.trainable=[]"})), "all of them frozen");
}

TEST(Report, JsonAddsUp) {
  const plan::PlanReport report = planned();
  const nlohmann::ordered_json json = to_json(report);
  EXPECT_EQ(json["world_size"], 4);
  EXPECT_EQ(json["model"]["numel"], 883);
  EXPECT_EQ(json["units"].size(), 4U);
  std::int64_t frozen = 0, trainable = 0, numel = 0;
  for (const auto& group : json["groups"]) {
    (group["trainable"] ? trainable : frozen) += group["shard_bytes"].get<std::int64_t>();
    numel += group["numel"].get<std::int64_t>();
    EXPECT_FALSE(group["parameters"].empty());
  }
  EXPECT_EQ(numel, 883);
  const auto& holds = json["holds"];
  EXPECT_EQ(holds["trainable_shard_bytes"], trainable);
  EXPECT_EQ(holds["frozen_shard_bytes"], frozen);
  EXPECT_EQ(holds["peak_bytes"], report.holdings.held.peak());
  EXPECT_EQ(json["moves"]["all_gathers"], 10);
  EXPECT_EQ(json["unsharded"]["moves"]["all_reduces"], 3);
  EXPECT_EQ(json["padding"]["numel"], 397);
  EXPECT_EQ(json["passes_per_update"], 1);
  EXPECT_EQ(json["accumulate"], "local");
}

}  // namespace
}  // namespace floe::report_test
