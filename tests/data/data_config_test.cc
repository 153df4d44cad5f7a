#include "floe/data/data_config.h"

#include <gtest/gtest.h>

#include "floe/config/yaml.h"
#include "floe/data/sources/laion.h"
#include "floe/data/sources/mmc4.h"
#include "floe/schema/schema.h"
#include "tests/config/expect_error.h"

namespace floe::data_config_test {
namespace {

using data::LaionConfig;
using data::Mmc4Config;
using test::config_error;
using test::expect_part;

DataConfig read(const std::string& yaml) {
  return config::bind<DataConfig>(config::parse_yaml(yaml, "data.yaml"));
}

TEST(DataConfig, ReadsTheBlock) {
  const DataConfig config = read(R"(
laion: {shards: "a/{0..9}.tar", num_samples: 1000}
mmc4: {shards: b.tar, batch_size: 8, text_sim_threshold: 0.3}
rules: corrected
workers: 3
shuffle: {memory: 64MiB}
)");
  EXPECT_EQ(config.block<LaionConfig>()->batch_size, 64);
  EXPECT_EQ(config.block<LaionConfig>()->weight, 0.2);
  EXPECT_EQ(config.block<LaionConfig>()->num_samples, 1000);
  EXPECT_EQ(config.block<Mmc4Config>()->max_images, 6);
  EXPECT_EQ(config.block<Mmc4Config>()->text_sim_threshold, 0.3);
  EXPECT_EQ(config.rules, data::Rules::corrected);
  EXPECT_EQ(config.shuffle.memory.bytes, 64 * kMiB);
  EXPECT_EQ(config.shuffle.samples, 5000);
  EXPECT_EQ(config.threads, 4);
  EXPECT_EQ(config.sources(), (std::vector<std::string>{"laion", "mmc4"}));
}

TEST(DataConfig, SaysWhatIsWrong) {
  const auto error = [](const std::string& yaml) { return config_error([&] { read(yaml); }); };
  expect_part(error("workers: 2"), "set one of laion.shards, mmc4.shards, text.files");
  expect_part(error("workers: 2"), " and batches");
  expect_part(error("laion: {batch_size: 2}"), "laion has no shards; set it, or remove the block");
  expect_part(error("{laion: {shards: a}, batches: b}"),
              "laion has shards, but data.batches is set");
  expect_part(error("mmc4: {shards: a, min_images: 7}"), "more than max_images, which is 6");
  expect_part(error("laion: {shards: a, batch_size: 0}"), "at least 1");
  expect_part(error("laion: {shards: ''}"), "laion has no shards");
  EXPECT_EQ(read("{batches: b, laion: {weight: 0.5}}").block<LaionConfig>()->weight, 0.5);
  expect_part(error("{laion: {shards: a}, rules: correct}"), "did you mean 'corrected'");
  expect_part(error("{laion: {shards: a}, max_bad_fraction: 2}"), "at most 1");
  expect_part(error("{laion: {shards: a}, shuffle: {samples: 10}}"), "would never give one");
  expect_part(error("{laion: {shard: a}}"), "did you mean 'shards'");
}

TEST(DataConfig, SourcesMustAgreeOnTheLengthOfAnEpoch) {
  DataConfig config = read(R"(
laion: {shards: a, batch_size: 64, num_samples: 6400}
mmc4: {shards: b, batch_size: 32, num_samples: 3200}
)");
  EXPECT_EQ(batches_per_epoch(config, 1), 100);
  EXPECT_EQ(batches_per_epoch(config, 4), 25);
  config.workers = 4;
  EXPECT_EQ(batches_per_epoch(config, 4), 28);
  config.workers = 1;
  config.block<Mmc4Config>()->num_samples = 1600;
  const std::string message = config_error([&] { batches_per_epoch(config, 2); });
  expect_part(message, "50 batches an epoch");
  expect_part(message, "data.mmc4.num_samples: 1600 is 25");
  expect_part(message, "set data.mmc4.num_samples: 3200, or data.laion.num_samples: 3200");
  // What it says would do, does.
  config.block<Mmc4Config>()->num_samples = 3200;
  EXPECT_EQ(batches_per_epoch(config, 2), 50);
  config.block<Mmc4Config>()->num_samples.reset();
  expect_part(config_error([&] { batches_per_epoch(config, 2); }), "set both or neither");
  config.block<LaionConfig>()->num_samples.reset();
  EXPECT_EQ(batches_per_epoch(config, 2), std::nullopt);
}

}  // namespace
}  // namespace floe::data_config_test
