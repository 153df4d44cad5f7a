// Results of requests: in order, never lost, and never over something else.
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "floe/requests/output.h"
#include "tests/io/scratch.h"

namespace floe::requests_output_test {
namespace {

using requests::FileOutput;
using requests::Record;
using requests::Summary;

Record result(std::int64_t number) { return {{"request", number}, {"ids", {number}}}; }
Record refused(std::int64_t number, const std::string& reason) {
  return {{"request", number}, {"error", str(reason, " of ", number)}, {"reason", reason}};
}

std::string lines_of(const std::vector<Record>& records) {
  std::string text;
  for (const Record& record : records) text += record.dump() + "\n";
  return text;
}

// What the error says; empty: there is none.
std::string refusal(const FileOutput& options) {
  try {
    requests::file_output(options, nullptr);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(StreamOutput, WritesInOrderAsSoonAsItCan) {
  std::ostringstream stream;
  const auto output = requests::stream_output(stream);
  output->write(result(1));
  EXPECT_EQ(stream.str(), "");
  output->write(refused(0, "image"));
  EXPECT_EQ(stream.str(), lines_of({refused(0, "image"), result(1)}));
  output->write(refused(2, "json"));
  output->write(refused(3, "request"));
  const Summary summary = output->finish(4, /*stopped=*/false);
  EXPECT_FALSE(summary.stopped);
  EXPECT_EQ(summary.problems,
            (std::map<std::string, std::int64_t>{{"image", 1}, {"json", 1}, {"request", 1}}));
  EXPECT_EQ(summary.malformed, 2);
  EXPECT_EQ(summary.first_malformed, "json of 2");
}

TEST(StreamOutput, WritesWhatIsDoneWhenTheRunIsStopped) {
  std::ostringstream stream;
  const auto output = requests::stream_output(stream);
  for (const std::int64_t number : {5, 0, 3}) output->write(result(number));
  const Summary summary = output->finish(7, /*stopped=*/true);
  EXPECT_TRUE(summary.stopped && !summary.goes_on);
  EXPECT_EQ(stream.str(), lines_of({result(0), result(3), result(5)}));
}

TEST(FileOutput, GoesOnWhereItWasStopped) {
  const test::Scratch folder;
  const FileOutput options{folder.path("out"), {{"model", "a"}}};
  {
    const auto output = requests::file_output(options, nullptr);
    output->write(result(2));
    output->write(refused(0, "json"));
    output->flush();
    const Summary summary = output->finish(3, /*stopped=*/true);
    EXPECT_TRUE(summary.stopped && summary.goes_on);
  }
  EXPECT_FALSE(path_exists(options.path));
  // Of a rank that is there no more, with a line that was not written to its end.
  write_file_atomically(options.path + ".parts/rank_7.jsonl",
                        lines_of({result(3)}) + R"({"request": 1, "ids")");
  const auto output = requests::file_output(options, nullptr);
  EXPECT_TRUE(output->has(0) && !output->has(1) && output->has(2) && output->has(3));
  output->write(result(1));
  const Summary summary = output->finish(4, /*stopped=*/false);
  EXPECT_EQ(summary.before, 3);
  EXPECT_EQ(summary.first_malformed, "json of 0");
  EXPECT_EQ(read_text(options.path, 1000),
            lines_of({refused(0, "json"), result(1), result(2), result(3)}));
  EXPECT_FALSE(path_exists(options.path + ".parts"));
}

TEST(FileOutput, TakesNothingFromOthers) {
  const test::Scratch folder;
  FileOutput options{folder.path("out"), {{"model", "a"}}};
  const std::string parts = options.path + ".parts";
  {
    const auto running = requests::file_output(options, nullptr);
    EXPECT_NE(refusal(options).find("another run is writing"), std::string::npos);
    running->write(result(0));
    running->finish(2, /*stopped=*/true);
  }
  const FileOutput other{options.path, {{"model", "b"}}};
  EXPECT_NE(refusal(other).find("model: \"a\" there, \"b\" now"), std::string::npos);
  write_file_atomically(options.path, "mine");
  EXPECT_NE(refusal(options).find("is there already"), std::string::npos);
  EXPECT_TRUE(path_exists(parts + "/rank_0.jsonl"));
  EXPECT_EQ(refusal({options.path, {{"model", "b"}}, /*force=*/true}), "");
  EXPECT_EQ(read_text(parts + "/rank_0.jsonl", 1000), "");

  std::filesystem::remove_all(parts);
  std::filesystem::create_directory(parts);
  write_file_atomically(parts + "/thesis.txt", "years of work");
  options.force = true;  // is for what a run has left behind
  EXPECT_NE(refusal(options).find("has other files, such as 'thesis.txt'"), std::string::npos);
  EXPECT_EQ(read_text(parts + "/thesis.txt", 1000), "years of work");
}

}  // namespace
}  // namespace floe::requests_output_test
