#include "floe/data/loader/held_out.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/data/loader_corpus.h"

namespace floe::data::held_out_test {
namespace {

std::vector<std::string> keys_of(HeldOut& held_out) {
  std::vector<std::string> keys;
  while (auto step = held_out.next())
    for (const SourceBatch& batch : step->sources)
      keys.insert(keys.end(), batch.keys.begin(), batch.keys.end());
  return keys;
}

TEST(HeldOut, ReadsEverySampleOfManyTinyShards) {
  for (const int count : {1, 63, 64, 65, 200}) {
    const auto shards = laion_shards(count, 1);
    const DataConfig config = laion_config(shards->pattern(), 7);
    HeldOut held_out(config, context(), {});
    const auto keys = keys_of(held_out);
    EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(),
              static_cast<std::size_t>(count));
    EXPECT_EQ(held_out.counts()[0].second.shards, count);
    EXPECT_EQ(held_out.counts()[0].second.kept, count);
  }
}

TEST(HeldOut, GoesOnOverManyEmptyShards) {
  Shards shards;
  for (int i = 0; i < 150; ++i) shards.add(tar_of({}));
  shards.add(laion_shard(150, 2));
  HeldOut held_out(laion_config(shards.pattern(), 4), context(), {});
  EXPECT_EQ(keys_of(held_out).size(), 2U);
}

TEST(HeldOut, GoesOnOverManyBadShards) {
  const auto shards = laion_shards(100, 1);
  for (int i = 0; i < 99; ++i) std::filesystem::remove(shards->path(i));
  HeldOut held_out(laion_config(shards->pattern(), 4), context(), {});
  EXPECT_EQ(keys_of(held_out).size(), 1U);
  EXPECT_EQ(held_out.counts()[0].second.bad_shards, 99);
}

TEST(HeldOut, RanksHaveDifferentNumbersOfShardsOrNone) {
  const auto shards = laion_shards(3, 5);
  std::multiset<std::string> all;
  for (int rank = 0; rank < 5; ++rank) {
    HeldOut held_out(laion_config(shards->pattern(), 2), context(rank, 5), {});
    const auto keys = keys_of(held_out);
    EXPECT_EQ(keys.size(), rank < 3 ? 5U : 0U);
    all.insert(keys.begin(), keys.end());
  }
  EXPECT_EQ(all.size(), 15U);
}

TEST(HeldOut, AStopEndsIt) {
  const auto shards = laion_shards(100, 1);
  std::atomic<bool> stop{false};
  HeldOut held_out(laion_config(shards->pattern(), 2), context(), {.stop = &stop});
  EXPECT_TRUE(held_out.next().has_value());
  stop = true;
  EXPECT_FALSE(held_out.next().has_value());
}

TEST(HeldOut, AProbeReadsUpToTheFirstUsableSample) {
  Shards shards;
  shards.add(tar_of({{"a.txt", "no picture"}, {"b.txt", "no picture"}}));
  shards.add(laion_shard(1, 100));
  HeldOut held_out(laion_config(shards.pattern(), 4), context(), {});
  held_out.probe();
  const Counts counts = held_out.counts()[0].second;
  EXPECT_EQ(counts.kept, 1);
  EXPECT_EQ(counts.samples, 3);
  EXPECT_EQ(counts.dropped.at("no_caption_or_image"), 2);
}

TEST(HeldOut, ErrorsNameTheKeyOfTheHeldOutShards) {
  LoaderContext at = context();
  at.keys.by_source["laion"] = "train.validation.shards.laion";
  try {
    const HeldOut held_out(laion_config("/nowhere/{0..3}.tar", 4), at, {});
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()).find("train.validation.shards.laion: "), 0U)
        << error.what();
  }
}

TEST(HeldOut, LongDocumentsOfTextComeInPieces) {
  test::Scratch folder;
  std::string words;
  for (int i = 0; i < 500; ++i) words += "word ";
  folder.write("a.jsonl", nlohmann::json{{"text", words}}.dump() + "\n" +
                              nlohmann::json{{"text", "short"}}.dump() + "\n");
  DataConfig config;
  config.block<TextConfig>().emplace();
  config.block<TextConfig>()->files = folder.path("a.jsonl");
  config.block<TextConfig>()->tokens = 64;
  HeldOut held_out(config, context(), {});
  std::size_t tokens = 0;
  while (auto step = held_out.next()) {
    const SourceBatch& batch = step->sources[0];
    tokens += batch.ids.size();
    for (std::size_t i = 0; i + 1 < batch.sequence_offsets.size(); ++i)
      EXPECT_LE(batch.sequence_offsets[i + 1] - batch.sequence_offsets[i], 64);
  }
  const auto length = [&](const std::string& text) {
    return reader().tokenizer->encode(text).size() + 1;  // and EOS
  };
  EXPECT_EQ(tokens, length(words) + length("short"));
}

}  // namespace
}  // namespace floe::data::held_out_test
