#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "floe/core/bytes.h"
#include "floe/core/dtype.h"
#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/log.h"
#include "floe/core/names.h"
#include "floe/core/stacks.h"
#include "floe/core/str.h"
#include "floe/core/utf8.h"

namespace floe::core_test {
namespace {

TEST(Glob, MatchesDottedNames) {
  EXPECT_TRUE(glob_match("layers.*.mlp", "layers.3.mlp"));
  EXPECT_TRUE(glob_match("*.q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(glob_match("perceiver.*", "perceiver.layers.0.weight"));
  EXPECT_TRUE(glob_match("layer?", "layer7"));
  EXPECT_TRUE(glob_match("layer[07]", "layer7"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_FALSE(glob_match("layers.*.mlp", "layers.3.mlp.weight"));
  EXPECT_FALSE(glob_match("Layer7", "layer7"));
  EXPECT_FALSE(glob_match("", "x"));
}

TEST(Glob, IsTotalOnOddPatterns) {
  for (const char* pattern : {"[", "[]", "[a", "\\", "[!", "[[:alpha:", "*[", "**", "[z-a]"})
    EXPECT_NO_THROW(glob_match(pattern, "name")) << pattern;
  EXPECT_TRUE(glob_match("a\\b", "a\\b"));  // a backslash is an ordinary character
}

TEST(Glob, AnyOfSeveral) {
  EXPECT_TRUE(glob_match_any({"a.*", "b.*"}, "b.c"));
  EXPECT_FALSE(glob_match_any({}, "b.c"));
}

TEST(Names, EditDistanceCountsSwapsOnce) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("steps", "stpes"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("a", "a"), 0u);
}

TEST(Names, EditDistanceIsSymmetric) {
  const std::vector<std::string> words{"", "a", "ab", "ba", "units", "unit", "full_shard", "shard"};
  for (const auto& a : words)
    for (const auto& b : words)
      EXPECT_EQ(edit_distance(a, b), edit_distance(b, a)) << a << " " << b;
}

TEST(Names, NearestComeFirstAndFarOnesNever) {
  const std::vector<std::string> keys{"steps", "epochs", "clip", "optimizer", "step"};
  EXPECT_EQ(nearest_names("stepz", keys).front(), "step");
  EXPECT_TRUE(nearest_names("zzzzzzz", keys).empty());
  EXPECT_EQ(nearest_names("steps", keys, 1).size(), 1u);
  EXPECT_EQ(nearest_names("optim", keys), std::vector<std::string>{"optimizer"});
  EXPECT_EQ(did_you_mean("clop", {"clip"}), "; did you mean 'clip'?");
  EXPECT_EQ(did_you_mean("xyz", {"clip"}), "");
}

TEST(Bytes, ParsesBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_bytes("40GiB"), 40 * kGiB);
  EXPECT_EQ(parse_bytes("5GB"), 5'000'000'000);
  EXPECT_EQ(parse_bytes("123"), 123);
  EXPECT_EQ(parse_bytes("1.5 MiB"), 3 * kMiB / 2);
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("2K"), 2000);
  EXPECT_EQ(parse_bytes("1TiB"), 1024 * kGiB);
}

TEST(Bytes, RefusesWhatIsNoSize) {
  for (const char* text : {"", "GiB", "-1", "-1GiB", "1 gib", "1XB", "nan", "inf", "1e30", "9300PB",
                           "1GiB2", "0x10", "99999999TiB"})
    EXPECT_THROW(parse_bytes(text), ConfigError) << text;
}

TEST(Bytes, Formats) {
  EXPECT_EQ(format_bytes(17), "17 B");
  EXPECT_EQ(format_bytes(3 * kGiB / 2), "1.50 GiB");
  EXPECT_EQ(format_bytes(12 * kMiB), "12.0 MiB");
  EXPECT_EQ(format_bytes(-kKiB), "-1.00 KiB");
  EXPECT_EQ(format_count(512), "512");
  EXPECT_EQ(format_count(69'100'000), "69.1 M");
}

TEST(Bytes, Rounding) {
  EXPECT_EQ(ceil_div(7, 4), 2);
  EXPECT_EQ(round_up(8, 4), 8);
  EXPECT_EQ(round_up(9, 4), 12);
  EXPECT_EQ(round_up(0, 4), 0);
}

TEST(DType, NamesGoThereAndBack) {
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype);
    EXPECT_EQ(dtype_from_safetensors(safetensors_name(dtype)), dtype);
    EXPECT_GE(size_of(dtype), 1);
  }
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(dtype_from_name("bfloat16"), DType::bf16);
  EXPECT_EQ(dtype_from_name("float32"), DType::f32);
  EXPECT_EQ(dtype_from_name("F32"), std::nullopt);
  EXPECT_EQ(dtype_from_safetensors("fp32"), std::nullopt);
}

TEST(Hash, DependsOnOrderLengthAndContent) {
  EXPECT_EQ(hash64("abc"), hash64("abc"));
  std::set<std::uint64_t> seen;
  for (const char* text : {"", "a", "b", "ab", "ba", "abcdefgh", "abcdefghi", "abcdefg"})
    EXPECT_TRUE(seen.insert(hash64(text)).second) << text;
  EXPECT_NE(Hash64().add("ab").add("c").value(), Hash64().add("a").add("bc").value());
  EXPECT_NE(Hash64().add(1).add(2).value(), Hash64().add(2).add(1).value());
  EXPECT_NE(hash64(std::string(1, '\0')), hash64(""));
}

TEST(Hash,
     IsTheSameEverywhere) {  // digests travel between ranks, so the value is part of the format
  static_assert(hash64("floe") == Hash64().add("floe").value());
  EXPECT_EQ(mix64(0), 0u);
  EXPECT_EQ(mix64(1), 0x5692161d100b05e5u);
}

TEST(Error, KnowsItsExitCode) {
  EXPECT_EQ(Error("x").exit(), Exit::failed);
  EXPECT_EQ(ConfigError("x").exit(), Exit::usage);
  EXPECT_NO_THROW(require(true, "never"));
  try {
    require<DataError>(false, "tensor ", 3, " is cut off");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "tensor 3 is cut off");
  }
}

TEST(Utf8, AnyBytesAreATextAndComeBack) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  for (const std::string& bytes :
       {std::string(), std::string("run"), std::string("\xc3\xa9t\xc3\xa9"), std::string("\xff"),
        std::string("a\xc3"), std::string("\xed\xa0\x80"), std::string("\xf4\x8f\xbf\xbf \xf4\x8f"),
        all, all + all}) {
    const std::string text = bytes_to_text(bytes);
    EXPECT_TRUE(is_utf8(text)) << shown_bytes(bytes);
    EXPECT_EQ(text_to_bytes(text), bytes) << shown_bytes(bytes);
    EXPECT_EQ(text_to_bytes(bytes_to_text(text)), text);
    EXPECT_TRUE(is_utf8(shown_bytes(bytes)));
  }
  EXPECT_EQ(bytes_to_text("\xc3\xa9"), "\xc3\xa9") << "what is UTF-8 stays";
  EXPECT_EQ(shown_bytes("a\xff\xc3\xa9"), "a\\xff\xc3\xa9");
}

TEST(Log, LinesFromManyThreadsAreWhole) {
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 50; ++i) log::info("a line that must not be torn");
    });
  for (auto& thread : threads) thread.join();
  const std::string text = testing::internal::GetCapturedStderr();
  std::size_t count = 0;
  for (std::size_t at = 0;
       (at = text.find("a line that must not be torn\n", at)) != std::string::npos; ++at)
    ++count;
  EXPECT_EQ(count, 200u);
}

TEST(Stacks, OfEveryThread) {
  std::atomic<bool> go_on{true};
  std::thread sleeper([&] {
    while (go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  const std::vector<std::string> lines = stacks_of_all_threads();
  const std::vector<std::string> again = stacks_of_all_threads();
  go_on = false;
  sleeper.join();
  for (const auto* one : {&lines, &again}) {
    const auto threads = std::count_if(one->begin(), one->end(), [](const std::string& line) {
      return line.starts_with("thread ") && line.ends_with("):");
    });
    EXPECT_GE(threads, 2) << join(*one, "\n");
    EXPECT_GE(one->size(), 6u) << join(*one, "\n");
  }
}

TEST(Log, TheFileHasDateHostAndRankWhateverTheTerminalShows) {
  const std::string path = std::filesystem::temp_directory_path() / str("floe-log-", getpid());
  std::filesystem::remove(path);
  log::set_file(path);
  log::set_rank(3, 4);
  testing::internal::CaptureStderr();
  log::info("one host");
  log::set_host("h7");
  log::info("several hosts");
  const std::string shown = testing::internal::GetCapturedStderr();
  log::set_host("");
  log::set_rank(0, 1);
  log::set_file("");
  std::stringstream file;
  file << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  const std::string date = R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )";
  EXPECT_TRUE(std::regex_search(file.str(), std::regex("^" + date + R"(\S+ \[3/4\] one host\n)")))
      << file.str();
  EXPECT_TRUE(
      std::regex_search(file.str(), std::regex("\n" + date + R"(h7 \[3/4\] several hosts\n)")))
      << file.str();
  EXPECT_TRUE(std::regex_search(shown, std::regex(R"(^\d\d:\d\d:\d\d \[3/4\] one host\n)")))
      << shown;
  EXPECT_TRUE(std::regex_search(shown, std::regex("\n" + date + R"(h7 \[3/4\] several hosts\n)")))
      << shown;
}

}  // namespace
}  // namespace floe::core_test
