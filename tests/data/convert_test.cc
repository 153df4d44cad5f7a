// The converter where the sanitizers see it; test_convert.py compares with references.
#include "floe/convert/convert.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "floe/convert/document.h"
#include "floe/core/error.h"
#include "tests/io/scratch.h"

namespace floe::convert::convert_test {
namespace {

std::string dumped(const std::string& text) {
  const data::PythonJson document(std::as_bytes(std::span(text)));
  std::string out;
  write_python_json(document.root(), out);
  return out;
}

TEST(ConvertJson, WritesAsPython) {
  EXPECT_EQ(dumped("[]"), "[]");
  EXPECT_EQ(dumped("{}"), "{}");
  EXPECT_EQ(dumped(R"({"a":[1,2.50,-0,1e5,1e16,1e-5,NaN,1e999],"b":null})"),
            R"({"a": [1, 2.5, 0, 100000.0, 1e+16, 1e-05, NaN, Infinity], "b": null})");
  EXPECT_EQ(dumped("\"\xc3\xa9\xf0\x9f\x98\x80\x7f\\u0001\\/\""),
            R"("\u00e9\ud83d\ude00\u007f\u0001/")");
}

ConvertOptions golden_input(const std::string& out) {
  const std::string raw =
      std::string(std::getenv("FLOE_SOURCE_DIR")) + "/tests/goldens/data/corpus/mmc4_raw";
  ConvertOptions options;
  for (const char* number : {"0", "1", "2"})
    options.zips.push_back(raw + "/shard_" + number + ".zip");
  options.images = raw + "/images";
  options.out = out;
  options.documents_per_shard = 2;
  options.files_per_shard = 2;
  return options;
}

std::map<std::string, std::string> shards(const test::Scratch& scratch, const std::string& folder) {
  std::map<std::string, std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path(folder)))
    if (entry.path().extension() == ".tar")
      found[entry.path().filename()] =
          scratch.read(folder + "/" + entry.path().filename().string());
  return found;
}

const std::function<void(const ConvertProgress&)> kQuiet = [](const ConvertProgress&) {};

TEST(Convert, ThreadsAndStopsDoNotChangeTheResult) {
  const test::Scratch scratch;
  std::atomic<bool> stop{false};
  ConvertOptions options = golden_input(scratch.path("one"));
  const ConvertCounts counts = convert_mmc4(options, kQuiet, stop);
  EXPECT_EQ(counts.at("documents"), 9);
  EXPECT_EQ(counts.at("pictures"), 17);
  const auto expected = shards(scratch, "one");
  EXPECT_EQ(expected.size(), 5U);  // 6 documents of two zips, 3 of the last

  options.out = scratch.path("many");
  options.num_threads = 4;
  EXPECT_EQ(convert_mmc4(options, kQuiet, stop), counts);
  EXPECT_EQ(shards(scratch, "many"), expected);

  options.out = scratch.path("stopped");
  for (int round = 1;; ++round) {  // stopped behind every document
    std::int64_t reports = 0;
    const auto stop_soon = [&](const ConvertProgress& progress) {
      if (progress.finished_shard.empty() && ++reports == 3) stop = true;
    };
    try {
      EXPECT_EQ(convert_mmc4(options, stop_soon, stop), counts);
      EXPECT_GT(round, 2);
      break;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("goes on from shard"), std::string::npos);
    }
    stop = false;
  }
  EXPECT_EQ(shards(scratch, "stopped"), expected);
}

TEST(Convert, RefusesWhatIsNotThere) {
  const test::Scratch scratch;
  const std::atomic<bool> stop{false};
  ConvertOptions options = golden_input(scratch.path("out"));
  options.zips.emplace_back("missing.zip");
  EXPECT_THROW(convert_mmc4(options, kQuiet, stop), ConfigError);
  options = golden_input(scratch.path("out"));
  options.images = scratch.path("missing");
  EXPECT_THROW(convert_mmc4(options, kQuiet, stop), ConfigError);
  options = golden_input(scratch.path("out"));
  options.zips = {scratch.write("bad.zip", "junk")};
  EXPECT_THROW(convert_mmc4(options, kQuiet, stop), DataError);
}

}  // namespace
}  // namespace floe::convert::convert_test
