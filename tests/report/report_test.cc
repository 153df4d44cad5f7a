// The report's parts on their own; the page in a browser is tested by test_report.py.
#include "floe/observe/report/report.h"

#include <gtest/gtest.h>

#include <cmath>

#include "floe/core/error.h"
#include "floe/observe/report/chart.h"
#include "floe/observe/report/html.h"
#include "tests/io/scratch.h"

namespace floe::report::report_test {
namespace {

TEST(Html, MarkupIsShown) {
  EXPECT_EQ(escaped("<a b='c'>\"&\n\x01\x7f"),
            "&lt;a b=&#39;c&#39;&gt;&quot;&amp;\n\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(escaped("\xff\xe6\xb0\xb4"), "\xef\xbf\xbd\xe6\xb0\xb4");
  EXPECT_EQ(for_script("[\"</script>\"]"), "[\"\\u003c/script>\"]");
}

TEST(Series, KeepsEveryStepOfAShortRun) {
  Series series;
  for (int step = 1; step <= 100; ++step) series.add(step, step * 2);
  EXPECT_EQ(series.buckets().size(), 100);
  EXPECT_FALSE(series.thinned());
  EXPECT_EQ(series.last(), 200);
  EXPECT_EQ(series.mean(), 101);
}

TEST(Series, LongRunsShareBucketsAndLoseNothing) {
  Series series;
  constexpr int kSteps = 1'000'003;
  for (int step = 1; step <= kSteps; ++step) series.add(step, step == 777'777 ? -5 : 1);
  EXPECT_TRUE(series.thinned());
  EXPECT_LE(series.buckets().size(), Series::kMostBuckets);
  EXPECT_GE(series.buckets().size(), Series::kMostBuckets / 2);
  std::int64_t count = 0;
  for (const Bucket& bucket : series.buckets()) count += bucket.count;
  EXPECT_EQ(count, kSteps);
  EXPECT_EQ(series.least(), -5);
  EXPECT_EQ(series.buckets().front().first_step, 1);
  EXPECT_EQ(series.buckets().back().last_step, kSteps);
}

TEST(Series, NotFiniteIsCounted) {
  Series series;
  series.add(1, NAN);
  series.add(2, INFINITY);
  EXPECT_EQ(series.num_not_finite(), 2);
  EXPECT_EQ(series.count(), 0);
  EXPECT_TRUE(std::isnan(series.last()));
  EXPECT_TRUE(series.smoothed().empty());
  EXPECT_NE(to_html({.title = "t", .lines = {{"a", &series}}}).find("No value is finite"),
            std::string::npos);
}

TEST(Series, SmoothingFollowsAStraightLine) {
  Series series;
  for (int step = 0; step <= 300; ++step) series.add(step, 3.0 - step * 0.01);
  const auto smooth = series.smoothed();
  for (int step = 60; step <= 240; ++step)
    EXPECT_NEAR(smooth[step], 3.0 - step * 0.01, 0.01) << step;
}

TEST(Ticks, RoundNumbersInside) {
  EXPECT_EQ(round_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(round_ticks(-1, 1, 4), (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  EXPECT_EQ(round_ticks(5, 5, 4), (std::vector<double>{5}));
  EXPECT_EQ(round_ticks(-1e308, 1e308, 4).size(), 1);
}

TEST(ShortNumber, FourDigits) {
  EXPECT_EQ(short_number(0.0001), "0.0001");
  EXPECT_EQ(short_number(12345), "12.35k");
  EXPECT_EQ(short_number(4.5e6), "4.5M");
  EXPECT_EQ(short_number(-2e9), "-2G");
}

// The page of a run with these files.
std::string page_of(const test::Scratch& scratch) {
  return report_html(read_logged_run(scratch.path()));
}

TEST(LoggedRun, DamagedFilesAreSaid) {
  test::Scratch scratch;
  scratch.write("config.yaml", "a: [1, 2\nb: }");
  scratch.write("metrics.jsonl", "");
  scratch.write("diagnostics.json", "{\"units\": [{\"name\": 5}]}");
  const std::string page = page_of(scratch);
  EXPECT_NE(page.find("The settings cannot be read: "), std::string::npos);
  EXPECT_NE(page.find("metrics.jsonl holds no step yet."), std::string::npos);
  EXPECT_NE(page.find("units[0].name should be a text, found 5"), std::string::npos);
}

TEST(LoggedRun, ManyDamagedLinesAreCounted) {
  test::Scratch scratch;
  std::string lines = "{\"step\":1,\"loss\":2}\n";
  for (int i = 0; i < 25; ++i) lines += "junk\n";
  scratch.write("metrics.jsonl", lines);
  const LoggedRun run = read_logged_run(scratch.path());
  EXPECT_EQ(run.num_damaged_lines, 25);
  EXPECT_NE(report_html(run).find("15 more lines of metrics.jsonl are damaged"), std::string::npos);
}

TEST(LoggedRun, HostileNumbersAndNames) {
  test::Scratch scratch;
  std::string lines;
  lines +=
      "{\"step\":9223372036854775807,\"time\":1e300,\"loss\":1e308,\"</"
      "script><b>\":1,\"x\":[1],\"memory/0\":-1e300}\n";
  lines +=
      "{\"step\":-9223372036854775807,\"time\":-1e300,\"loss\":-1e308,\"</"
      "script><b>\":-1,\"y\":{\"z\":1}}\n";
  lines += "{\"step\":18446744073709551615,\"time\":\"late\",\"loss\":5e-324,\"\":2}\n";
  for (int i = 0; i < 2000; ++i) lines += "{\"step\":1,\"name" + std::to_string(i) + "\":1}\n";
  scratch.write("metrics.jsonl", lines);
  const std::string page = page_of(scratch);
  EXPECT_EQ(page.find("</script><b>"), std::string::npos);
  EXPECT_EQ(page.find("nan"), std::string::npos);
  EXPECT_LT(page.size(), 4u << 20);
}

TEST(Scores, OfTasksAreATableAndCurves) {
  test::Scratch scratch;
  scratch.write("metrics.jsonl", "");
  const auto result = [](int shots, int step, const std::string& mean) {
    return str(R"({"model":"m","task":"<t>","metric":"cider","shots":)", shots, R"(,"step":)", step,
               R"(,"mean":)", mean, R"(,"interval":[1.5,2.5],"trials":[{"asked":4,"judged":3},)",
               R"({"asked":4,"judged":4}]})");
  };
  scratch.write("eval/results.json", str(R"({"results":[)", result(4, 20, "7.25"), ",",
                                         result(4, 10, "2"), ",", result(0, 10, "null"), "]}"));
  const LoggedRun run = read_logged_run(scratch.path());
  ASSERT_EQ(run.scores.size(), 3);
  EXPECT_EQ(run.scores[0].shots, 0);
  EXPECT_FALSE(run.scores[0].mean);
  EXPECT_EQ(run.scores[1].step, 10);
  EXPECT_EQ(run.scores[2].judged, 7);
  const std::string page = report_html(run);
  EXPECT_NE(page.find("&lt;t&gt; (cider)"), std::string::npos);
  EXPECT_NE(page.find("<td class='number'>7.25</td><td class='number'>1.5 to 2.5</td>"
                      "<td class='number'>7/8</td>"),
            std::string::npos);
  EXPECT_EQ(page.find("<t>"), std::string::npos);
}

TEST(Scores, DamageIsSaid) {
  for (const char* text :
       {"", "[]", R"({"results":[5]})", R"({"results":[{"model":1}]})",
        R"({"results":[{"model":"m","task":"t","metric":"m","shots":1e300}]})",
        R"({"results":[{"model":"m","task":"t","metric":"m","shots":18446744073709551615}]})"}) {
    test::Scratch scratch;
    scratch.write("metrics.jsonl", "");
    scratch.write("eval/results.json", text);
    EXPECT_NE(page_of(scratch).find("The scores of tasks cannot be read: "), std::string::npos)
        << text;
  }
}

TEST(Diagnostics, CountsHaveBounds) {
  for (const char* value : {"-1", "1e300", "18446744073709551615", "\"5\""}) {
    test::Scratch scratch;
    const std::string path = scratch.write("d.json", str("{\"ranks\":[{\"rank\":", value, "}]}"));
    EXPECT_THROW(read_diagnostics(path), DataError) << value;
  }
}

TEST(Diagnostics, DeepNamesEndSomewhere) {
  test::Scratch scratch;
  scratch.write("metrics.jsonl", "");
  std::string name = "a";
  for (int i = 0; i < 100'000; ++i) name += ".a";
  scratch.write("diagnostics.json", "{\"units\":[{\"name\":\"" + name + "\"}]}");
  EXPECT_NE(page_of(scratch).find("1 unit: "), std::string::npos);
}

TEST(RankLogs, WarningsAndTheEnd) {
  test::Scratch scratch;
  std::string text = "10:00:00 warning: one\n10:00:01 error: two\n";
  for (int i = 0; i < 100; ++i) text += "10:00:02 line\n";
  text += std::string(100'000, 'x');
  scratch.write("logs/rank_10.log", text);
  scratch.write("logs/rank_2.log", "");
  scratch.write("logs/rank_x.log", "no rank");
  const auto logs = read_rank_logs(scratch.path("logs"));
  ASSERT_EQ(logs.size(), 2);
  EXPECT_EQ(logs[0].rank, 2);
  EXPECT_EQ(logs[1].num_lines, 103);
  EXPECT_EQ(logs[1].num_warnings, 1);
  EXPECT_EQ(logs[1].notable.size(), 2);
  EXPECT_EQ(logs[1].tail.size(), 20);
  EXPECT_LE(logs[1].tail.back().size(), 2000);
}

}  // namespace
}  // namespace floe::report::report_test
