// The sinks and the progress line; what other systems make of the files is tested with those
// systems.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "floe/config/yaml.h"
#include "floe/core/error.h"
#include "floe/observe/metrics/jsonl_reader.h"
#include "floe/observe/metrics/progress.h"
#include "floe/observe/sinks/append_file.h"
#include "floe/observe/sinks/jsonl.h"
#include "floe/observe/sinks/sink.h"
#include "floe/observe/sinks/tensorboard.h"
#include "floe/schema/yaml_text.h"
#include "tests/io/scratch.h"

namespace floe::observe::metrics_test {
namespace {

TEST(NumberText, ShortAndExact) {
  EXPECT_EQ(number_text(0.1), "0.1");
  EXPECT_EQ(number_text(0.001), "0.001");
  EXPECT_EQ(number_text(1e-4), "1e-04");
  EXPECT_EQ(number_text(100000), "100000");
  EXPECT_EQ(number_text(-3), "-3");
  EXPECT_EQ(number_text(1e22), "1e+22");
  EXPECT_EQ(number_text(std::numeric_limits<double>::denorm_min()), "5e-324");
  EXPECT_EQ(number_text(NAN), "NaN");
  EXPECT_EQ(number_text(-INFINITY), "-Infinity");
}

TEST(JsonLine, StepFirstThenValuesInOrder) {
  const Record record{
      .step = 3, .time_s = 1.5, .values = {{"z", 1}, {"a\"", 2.5}}, .texts = {{"t", "x\n"}}};
  EXPECT_EQ(json_line(record), "{\"step\":3,\"time\":1.5,\"z\":1,\"a\\\"\":2.5,\"t\":\"x\\n\"}\n");
}

TEST(JsonLine, WhatIsNotFiniteIsNullAndNamed) {
  EXPECT_EQ(json_line({.step = 1, .values = {{"a", NAN}, {"b", 1}, {"c", INFINITY}}}),
            "{\"step\":1,\"time\":0,\"a\":null,\"b\":1,\"c\":null,"
            "\"not_finite\":{\"a\":\"NaN\",\"c\":\"Infinity\"}}\n");
}

TEST(JsonLine, DetailsAreObjectsOfTheSameLine) {
  const Record record{.step = 3,
                      .time_s = 1.5,
                      .values = {{"loss", 2}},
                      .details = {{"phase_switch", {{"to", "b\xff"}, {"memory", {{"rest", 7}}}}}}};
  EXPECT_EQ(json_line(record),
            "{\"step\":3,\"time\":1.5,\"loss\":2,\"phase_switch\":{\"to\":\"b\xef\xbf\xbd\","
            "\"memory\":{\"rest\":7}}}\n");
}

std::string trimmed(const std::string& text, std::int64_t last_step) {
  test::Scratch scratch;
  const std::string path = scratch.write("metrics.jsonl", text);
  trim_jsonl(path, last_step);
  return scratch.read("metrics.jsonl");
}

TEST(Trim, LaterStepsLeave) {
  EXPECT_EQ(trimmed("{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n", 2),
            "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_EQ(trimmed("{\"step\":1}\n{\"step\":2}\n", 2), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_EQ(trimmed("{\"step\":1}\n", 0), "");
  EXPECT_EQ(trimmed("", 5), "");
}

TEST(Trim, EveryStepOnceAndInOrder) {
  EXPECT_EQ(trimmed("{\"step\":1,\"a\":1}\n{\"step\":1,\"a\":2}\n{\"step\":4}\n{\"step\":2}\n", 9),
            "{\"step\":1,\"a\":1}\n{\"step\":4}\n");
}

TEST(Trim, CutAnywhereLeavesWholeLines) {
  const std::string whole = "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":2.25}\n";
  const std::size_t first = whole.find('\n') + 1;
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    const std::string kept =
        size < first ? "" : whole.substr(0, size < whole.size() ? first : size);
    EXPECT_EQ(trimmed(whole.substr(0, size), 9), kept) << size;
  }
}

TEST(JsonlReader, SaysWhatIsWrongWithALine) {
  test::Scratch scratch;
  const std::string deep =
      "{\"step\":1,\"a\":" + std::string(50'000, '[') + std::string(50'000, ']') + "}";
  const std::string path =
      scratch.write("m", "{\"step\":1}\n[]\n{\"a\":1}\n{\"step\":1.5}\n" + deep + "\n\n" +
                             std::string(3 << 20, 'x') + "\n{\"step\":2}\n{\"step\":3}");
  JsonlReader reader(path);
  std::vector<std::string> problems;
  for (JsonLine line; reader.next(line);) problems.push_back(line.problem);
  EXPECT_EQ(problems,
            (std::vector<std::string>{"", "not a JSON object", "without an integer 'step'",
                                      "without an integer 'step'", "nested deeper than 8 levels",
                                      "not a JSON object", "longer than 1048576 bytes", "",
                                      "torn off: it has no newline at its end"}));
}

TEST(FlatConfig, DottedNamesAndWholeLists) {
  const auto settings =
      flat_config({{"a", {{"b", 1}, {"c", {1, 2}}}}, {"d", nlohmann::json::object()}});
  ASSERT_EQ(settings.size(), 3);
  EXPECT_EQ(settings[0].first, "a.b");
  EXPECT_EQ(settings[1].second.dump(), "[1,2]");
  EXPECT_EQ(settings[2].first, "d");
  EXPECT_TRUE(flat_config(nullptr).empty());
}

TEST(OpenSinks, RunsWithoutSettings) {
  test::Scratch scratch;
  const auto sinks = open_sinks({}, {.name = "n", .folder = scratch.path("deep/run")});
  sinks->write({.step = 0, .time_s = 1, .values = {{"val_loss", 1}}});
  sinks->write({.step = 1, .time_s = 2, .values = {{"loss", 1}}});
  EXPECT_THROW(sinks->write({.step = 1}), Error);
  sinks->finish(0);
  EXPECT_EQ(scratch.read("deep/run/metrics.jsonl"),
            "{\"step\":0,\"time\":1,\"val_loss\":1}\n{\"step\":1,\"time\":2,\"loss\":1}\n");
}

config::Value settings(const std::string& text) { return config::parse_yaml(text, "test"); }

// Of the sinks' part of `log:`, with its defaults.
std::string resolved(const SinkConfigs& configs) {
  return config::write_inline_yaml(config::Codec<SinkConfigs>::write(configs, config::Write::all));
}

TEST(SinkConfigs, EachSinkOwnsItsKeys) {
  const std::string wandb = "{mode: offline, project: ice, entity: null, checkpoints: false}";
  const auto configs =
      config::bind<SinkConfigs>(settings("{jsonl: false, wandb: {mode: offline, project: ice}}"));
  EXPECT_TRUE(resolved(configs).starts_with("{tensorboard: true, jsonl: false, wandb: " + wandb))
      << resolved(configs);
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): the copy is what is tested
  const SinkConfigs copy = configs;
  EXPECT_EQ(resolved(copy), resolved(configs));
  EXPECT_NE(resolved(copy), resolved(SinkConfigs{}));
}

TEST(SinkConfigs, WhatNoSinkKnowsIsRefused) {
  const auto problem = [](const std::string& text) -> std::string {
    try {
      config::bind<SinkConfigs>(settings(text));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(problem("{jsnl: true}").find("did you mean 'jsonl'"), std::string::npos);
  EXPECT_NE(problem("{wandb: {project: ''}}").find("wandb.project"), std::string::npos);
}

TEST(OpenSinks, NoneAtAll) {
  test::Scratch scratch;
  const auto off = config::bind<SinkConfigs>(settings("{jsonl: false, tensorboard: false}"));
  const auto sinks = open_sinks(off, {.name = "n", .folder = scratch.path("run")});
  sinks->write({.step = 1});
  EXPECT_THROW(sinks->write({.step = 1}), Error);
  sinks->add_files(scratch.path("nothing"), "nothing");
  sinks->finish(1);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path("run")));
}

// Nothing can be written there, and memory is bounded: what finds no place in it is counted.
TEST(AppendFile, KeepsSoMuchAndNoMore) {
  AppendFile file("/dev/full", 100);
  const std::string piece(40, 'x');
  file.append(piece);
  EXPECT_EQ(file.size(), 40);
  file.append(piece);
  EXPECT_EQ(file.size(), 80);
  EXPECT_EQ(file.num_missing(), 0);
  file.append(piece);
  EXPECT_EQ(file.size(), 80) << "what follows goes where this would have gone";
  EXPECT_EQ(file.num_missing(), 1);
  file.append("short");
  EXPECT_EQ(file.size(), 85);
}

TEST(Duration, InWords) {
  EXPECT_EQ(format_duration(4.9), "4 s");
  EXPECT_EQ(format_duration(250), "4 min 10 s");
  EXPECT_EQ(format_duration(7500), "2 h 05 min");
  EXPECT_EQ(format_duration(90000), "1 d 1 h");
  EXPECT_EQ(format_duration(-3), "0 s");
}

TEST(ProgressText, PartsLeaveFromTheEnd) {
  const Progress progress{.step = 120,
                          .losses = {{"loss_laion", 2.45123}, {"loss_mmc4", NAN}},
                          .tokens_per_second = 48123,
                          .samples_per_second_per_rank = {{"laion", 12.345}},
                          .memory_bytes = 3LL << 30,
                          .skipped = 2};
  EXPECT_EQ(progress_text(progress, 1000, 250, 0),
            "step 120/1000  4 min 10 s left  loss_laion 2.4512  loss_mmc4 nan  48.1k tokens/s  "
            "laion 12.3 samples/s per rank  memory 3.00 GiB  2 batches skipped");
  EXPECT_EQ(progress_text(progress, 1000, 250, 60),
            "step 120/1000  4 min 10 s left  loss_laion 2.4512");
  EXPECT_EQ(progress_text(progress, 1000, NAN, 20), "step 120/1000");
  EXPECT_EQ(progress_text(progress, 1000, NAN, 3), "");
  EXPECT_EQ(progress_text({.step = 5}, 5, 3, 0), "step 5/5");
}

}  // namespace
}  // namespace floe::observe::metrics_test
