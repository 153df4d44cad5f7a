// Draws of trials against OpenFlamingo's own functions (tests/eval/make_goldens.py).
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"
#include "floe/eval/tasks/draw.h"
#include "floe/io/file/file.h"

namespace floe::eval::eval_draw_test {
namespace {

using Numbers = std::vector<std::size_t>;

TEST(Draw, IsOpenFlamingos) {
  const auto cases = nlohmann::json::parse(read_text(
      std::string(std::getenv("FLOE_SOURCE_DIR")) + "/tests/eval/goldens/draws.json", 1 << 24));
  for (const auto& one : cases) {
    const TrialDraw draw = draw_trial({.seed = one["seed"],
                                       .tests = one["tests"],
                                       .asked = one["asked"],
                                       .train = one["train"],
                                       .query_set = one["query_set"],
                                       .context = one["context"]});
    EXPECT_EQ(draw.asked, one["order"].get<Numbers>()) << one["seed"];
    EXPECT_EQ(draw.context, one["contexts"].get<std::vector<Numbers>>()) << one["seed"];
  }
  EXPECT_GE(cases.size(), 7);
}

TEST(Draw, TakesWhatThereIs) {
  const TrialDraw all =
      draw_trial({.tests = 5, .asked = 9, .train = 3, .query_set = 2048, .context = 3});
  EXPECT_EQ(all.asked.size(), 5);
  for (Numbers context : all.context) {
    std::sort(context.begin(), context.end());
    EXPECT_EQ(context, (Numbers{0, 1, 2}));
  }
  EXPECT_THROW(draw_trial({.tests = 5, .train = 3, .query_set = 2048, .context = 4}), ConfigError);
  EXPECT_TRUE(draw_trial({.tests = 0}).asked.empty());
}

}  // namespace
}  // namespace floe::eval::eval_draw_test
