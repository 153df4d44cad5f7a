#include "floe/data/loader/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "floe/io/safetensors/safetensors.h"
#include "tests/data/loader_corpus.h"

namespace floe::data::loader_test {
namespace {

// Without a shuffle, so that the order is that of the shards.
void in_order(DataConfig& config) { config.shuffle = {1, 1, {kMiB}}; }

std::vector<std::string> keys_of_shards(const std::vector<std::int64_t>& shards, int samples) {
  std::vector<std::string> keys;
  for (const std::int64_t shard : shards)
    for (int i = 0; i < samples; ++i) keys.push_back(sample_key(static_cast<int>(shard), i));
  return keys;
}

TEST(Loader, GivesPicturesAndTokensOfItsSamples) {
  const auto shards = laion_shards(1, 6);
  DataConfig config = laion_config(shards->pattern(), 3);
  in_order(config);
  const LoaderContext at = context();
  Loader loader(config, at);
  const Batch step = loader.next();
  ASSERT_EQ(step.sources.size(), 1U);
  const SourceBatch& batch = step.sources[0];
  EXPECT_EQ(source_name(batch.source), "laion");
  EXPECT_EQ(batch.keys, keys_of_shards({0}, 3));
  EXPECT_EQ(batch.image_offsets, (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(step.shape.num_images, 3);
  EXPECT_EQ(step.shape.height, 8);

  // The same from the pieces, by hand. One coin flips the whole batch.
  const image::Transform transform(at.transform);
  const std::uint64_t base = loader_base_seeds(at.seed, 0, 1).front();
  const bool flip = TorchRandom(worker_seed(base, 0)).rand() < 0.5F;
  std::vector<std::int64_t> ids, positions;
  for (int i = 0; i < 3; ++i) {
    const auto picture = noise_image(10, 8, hash64(sample_key(0, i)));
    const auto file = image::encode_jpeg(picture);
    std::vector<std::uint8_t> crop(transform.crop_bytes());
    std::vector<float> expected(transform.crop_bytes());
    transform.crop(image::decode(file), crop.data());
    transform.normalise(crop.data(), expected.data(), flip);
    const float* first = step.images->data() + i * step.shape.numel_each();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), first)) << i;
    const auto tokens = reader().tokenizer->encode("<image>a picture of " + sample_key(0, i) +
                                                   "<|endofchunk|>" + *reader().tokenizer->eos());
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    for (std::size_t k = 0; k < tokens.size(); ++k)
      positions.push_back(static_cast<std::int64_t>(k));
  }
  EXPECT_EQ(batch.ids, ids);
  EXPECT_EQ(batch.positions, positions);
  EXPECT_EQ(batch.labels.size(), ids.size());
  EXPECT_EQ(batch.labels[0], -100);  // <image>
  EXPECT_EQ(batch.labels[1], ids[1]);
}

TEST(Loader, FlipsWholeBatchesAsTheReferenceOrSamplesWhenCorrected) {
  const auto shards = laion_shards(1, 40);
  for (const Rules rules : {Rules::openflamingo, Rules::corrected}) {
    DataConfig config = laion_config(shards->pattern(), 4);
    config.rules = rules;
    in_order(config);
    const LoaderContext at = context();
    Loader loader(config, at);
    const image::Transform transform(at.transform);
    TorchRandom flips(worker_seed(loader_base_seeds(at.seed, 0, 1).front(), 0));
    int num_flipped = 0;
    for (int s = 0; s < 10; ++s) {
      const Batch step = loader.next();
      bool flip = false;
      for (int i = 0; i < 4; ++i) {
        if (rules == Rules::corrected || i == 0) flip = flips.rand() < 0.5F;
        num_flipped += flip;
        std::vector<std::uint8_t> crop(transform.crop_bytes());
        std::vector<float> expected(transform.crop_bytes());
        transform.crop(image::decode(image::encode_jpeg(noise_image(
                           10, 8, hash64(step.sources[0].keys[static_cast<std::size_t>(i)])))),
                       crop.data());
        transform.normalise(crop.data(), expected.data(), flip);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                               step.images->data() + i * step.shape.numel_each()));
      }
    }
    EXPECT_GT(num_flipped, 4);
    EXPECT_LT(num_flipped, 36);
  }
}

// With one shard only the shuffle can change the order.
TEST(Loader, EveryEpochIsShuffledAnew) {
  const auto shards = laion_shards(1, 40);
  DataConfig config = laion_config(shards->pattern(), 1);
  config.shuffle = {30, 20, {kMiB}};
  config.block<LaionConfig>()->num_samples = 40;
  Loader loader(config, context());
  std::set<std::vector<std::string>> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    const auto keys = keys_of(loader, 40);
    EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), 40U);
    orders.insert(keys);
  }
  EXPECT_EQ(orders.size(), 3U);
}

TEST(Loader, WorkersTakeTurnsOverTheirOwnShards) {
  const auto shards = laion_shards(8, 4);
  DataConfig config = laion_config(shards->pattern(), 2);
  config.workers = 2;
  config.block<LaionConfig>()->num_samples = 32;
  in_order(config);
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    Loader loader(config, context(rank, 2));
    ASSERT_EQ(loader.steps_per_epoch(), 8);
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<std::vector<std::string>> expected;
      for (std::int64_t worker = 0; worker < 2; ++worker)
        expected.push_back(keys_of_shards(shard_order(8, 7, epoch, {rank, 2, worker, 2}), 4));
      for (std::size_t i = 0; i < 8; ++i) {
        const Batch step = loader.next();
        EXPECT_EQ(step.epoch, static_cast<std::int64_t>(epoch));
        EXPECT_EQ(step.index, static_cast<std::int64_t>(i));
        EXPECT_EQ(step.ends_epoch, i == 7);
        const auto& own = expected[i % 2];
        const std::size_t first = i / 2 * 2;
        EXPECT_EQ(step.sources[0].keys, (std::vector<std::string>{own[first], own[first + 1]}))
            << rank << " " << i;
      }
    }
  }
}

TEST(Loader, RepeatsItsShardsAndThrowsPartialBatchesAway) {
  const auto shards = laion_shards(2, 5);
  DataConfig config = laion_config(shards->pattern(), 4);  // 10 samples a pass: 2 batches, 2 over
  config.block<LaionConfig>()->num_samples = 20;
  in_order(config);
  for (const Rules rules : {Rules::openflamingo, Rules::corrected}) {
    config.rules = rules;
    Loader loader(config, context());
    std::vector<std::string> expected;
    for (std::uint64_t pass = 0; pass < 3; ++pass) {
      auto keys = keys_of_shards(shard_order(2, 7, 0, {}, rules, pass), 5);
      keys.resize(8);
      expected.insert(expected.end(), keys.begin(), keys.end());
    }
    expected.resize(20);
    EXPECT_EQ(keys_of(loader, 5), expected);
    EXPECT_EQ(loader.counts()[0].second.left_over, 4);
  }
}

TEST(Loader, ResampledShardsAreTheReferenceDraws) {
  const auto shards = laion_shards(5, 3);
  DataConfig config = laion_config(shards->pattern(), 3);
  config.resampled = true;
  config.workers = 2;
  in_order(config);
  Loader loader(config, context());
  const std::uint64_t base = loader_base_seeds(7, 0, 1).front();
  ResampledShards first(5, worker_seed(base, 0), 0, 2), second(5, worker_seed(base, 1), 0, 2);
  for (int i = 0; i < 20; ++i) {
    const std::int64_t shard = i % 2 ? second.next() : first.next();
    EXPECT_EQ(loader.next().sources[0].keys, keys_of_shards({shard}, 3)) << i;
  }
}

TEST(Loader, EverySampleOfAnEpochComesOnce) {
  const auto shards = laion_shards(6, 50);
  DataConfig config = laion_config(shards->pattern(), 5);
  config.workers = 3;
  config.block<LaionConfig>()->num_samples = 300;
  config.shuffle = {40, 20, {kMiB}};
  std::multiset<std::string> seen;
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    Loader loader(config, context(rank, 2));
    const auto keys = keys_of(loader, 30);
    seen.insert(keys.begin(), keys.end());
    EXPECT_FALSE(std::is_sorted(keys.begin(), keys.end()));
  }
  EXPECT_EQ(seen.size(), 300U);
  EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 300U);
}

TEST(Loader, ThreadsNeverChangeWhatComes) {
  const auto shards = laion_shards(10, 1000);
  std::vector<std::uint64_t> expected;
  for (const int threads : {1, 2, 4, 8}) {
    DataConfig config = laion_config(shards->pattern(), 50);
    config.workers = 2;
    config.threads = threads;
    Loader loader(config, context());
    const auto prints = fingerprints(loader, 200);  // 10,000 samples
    if (expected.empty()) expected = prints;
    EXPECT_EQ(prints, expected) << threads;
  }
  DataConfig config = laion_config(shards->pattern(), 50);
  config.workers = 2;
  Loader other(config, context(0, 1, 8));
  EXPECT_NE(fingerprints(other, 1)[0], expected[0]);  // another seed
}

TEST(Loader, SeveralSourcesComeInOneStep) {
  const auto pairs = laion_shards(2, 40);
  Shards documents;
  for (int i = 0; i < 2; ++i) documents.add(mmc4_shard(i, 30));
  std::vector<std::uint64_t> expected;
  for (const int threads : {1, 4}) {
    DataConfig config = laion_config(pairs->pattern(), 4);
    config.block<Mmc4Config>().emplace();
    config.block<Mmc4Config>()->shards = documents.pattern();
    config.block<Mmc4Config>()->batch_size = 3;
    config.threads = threads;
    Loader loader(config, context());
    const auto prints = fingerprints(loader, 30);
    if (expected.empty()) expected = prints;
    EXPECT_EQ(prints, expected);
    const Batch step = loader.next();
    ASSERT_EQ(step.sources.size(), 2U);
    EXPECT_EQ(source_name(step.sources[0].source), "laion");
    EXPECT_EQ(source_name(step.sources[1].source), "mmc4");
    EXPECT_EQ(step.sources[1].keys.size(), 3U);
    EXPECT_EQ(step.sources[1].first_image, 4);
    EXPECT_EQ(step.shape.num_images, 4 + step.sources[1].num_images());
    const Counts counts = loader.counts()[1].second;
    EXPECT_GT(counts.dropped.at("single_image_coin"), 0);
    EXPECT_EQ(counts.num_damaged(), 0);
  }
}

TEST(Loader, LessDataThanABatchIsAnError) {
  const auto shards = laion_shards(2, 3);
  Loader loader(laion_config(shards->pattern(), 7), context());
  try {
    loader.next();
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("6 usable samples, less than one batch of 7"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(loader.next(), DataError);
}

TEST(Loader, ResampledShardsWithoutSamplesAreAnError) {
  Shards shards;
  shards.add(tar_of({}));
  DataConfig config = laion_config(shards.pattern(), 7);
  config.resampled = true;
  Loader loader(config, context());
  EXPECT_THROW(loader.next(), DataError);
}

std::string error_of(const DataConfig& config) {
  Loader loader(config, context());
  try {
    for (int i = 0; i < 50; ++i) loader.next();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Loader, ResampledTinyShardsFillTheBufferByReadingOn) {
  for (const int count : {1, 3, 200}) {
    const auto shards = laion_shards(count, 1);
    DataConfig config = laion_config(shards->pattern(), 2);
    config.resampled = true;  // and the usual buffer, which gives nothing before it holds 1000
    EXPECT_EQ(error_of(config), "no error") << count;
  }
}

TEST(Loader, ResampledShardsWithFewUsableSamplesAreUsed) {
  Shards shards;
  for (int i = 0; i < 30; ++i) shards.add(tar_of({{"x.txt", "no picture"}}));
  shards.add(laion_shard(30, 1));
  DataConfig config = laion_config(shards.pattern(), 1);
  config.resampled = true;
  EXPECT_EQ(error_of(config), "no error");
}

TEST(Loader, WithoutUsableSamplesTheReasonIsNamed) {
  for (const bool resampled : {false, true}) {
    Shards shards;
    for (int i = 0; i < 3; ++i)
      shards.add(tar_of({{"x" + std::to_string(i) + ".txt", "no picture"}}));
    DataConfig config = laion_config(shards.pattern(), 2);
    config.resampled = resampled;
    const std::string error = error_of(config);
    EXPECT_NE(error.find("no_caption_or_image"), std::string::npos) << error;
    EXPECT_NE(error.find("a pair needs the members KEY.txt and KEY.jpg"), std::string::npos)
        << error;
    EXPECT_EQ(error.find("make batches smaller"), std::string::npos) << error;

    Shards empty;
    empty.add(tar_of({}));
    config.block<LaionConfig>()->shards = empty.pattern();
    EXPECT_NE(error_of(config).find("Are they empty"), std::string::npos) << error_of(config);
  }
}

TEST(Loader, OneFileOfPreparedBatchesIsNotForSeveralRanks) {
  DataConfig config;
  config.batches = std::string(std::getenv("FLOE_SOURCE_DIR")) +
                   "/tests/goldens/models/opt_x1-train/batches.safetensors";
  try {
    const Loader loader(config, context(0, 2));
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("{rank}"), std::string::npos) << error.what();
  }
}

TEST(Loader, TooFewShardsForTheStreamsIsAnError) {
  const auto shards = laion_shards(3, 2);
  DataConfig config = laion_config(shards->pattern(), 1);
  config.workers = 2;
  EXPECT_THROW(Loader(config, context(0, 2)), ConfigError);
}

TEST(Loader, BadShardsAreCountedAndLeft) {
  const auto shards = laion_shards(8, 20);
  std::filesystem::remove(shards->path(1));
  shards->folder.write("2.tar", "this is not a tar, " + std::string(2000, 'x'));
  std::filesystem::resize_file(shards->path(3),
                               std::filesystem::file_size(shards->path(3)) / 2 + 100);
  shards->folder.write("4.tar", "");
  DataConfig config = laion_config(shards->pattern() + "::pipe:cat " + shards->path(0) +
                                       "; exit 3::pipe:no-such-command-of-floe",
                                   2);
  config.max_bad_fraction = 1;
  in_order(config);
  Loader loader(config, context());
  std::map<std::string, int> seen;
  for (const std::string& key : keys_of(loader, 60)) ++seen[key];  // more than a pass has
  // Whole shards 0 (twice: also through the pipe), 5, 6, 7 and the first half of 3.
  for (int i = 0; i < 20; ++i) {
    EXPECT_GE(seen[sample_key(0, i)], 1) << i;
    for (const int shard : {5, 6, 7}) EXPECT_GE(seen[sample_key(shard, i)], 1) << shard << " " << i;
    EXPECT_EQ(seen[sample_key(1, i)] + seen[sample_key(2, i)] + seen[sample_key(4, i)], 0);
  }
  EXPECT_GE(seen[sample_key(3, 0)], 1);
  EXPECT_EQ(seen[sample_key(3, 19)], 0);
  const Counts counts = loader.counts()[0].second;
  EXPECT_GE(counts.bad_shards, 6);
  EXPECT_NE(counts.text().find("could not be read to their end"), std::string::npos);

  config.max_bad_fraction = 0.05;
  Loader strict(config, context());
  EXPECT_THROW(keys_of(strict, 60), DataError);
}

TEST(Loader, DamagedSamplesAreCountedByReason) {
  Shards shards;
  std::vector<TarFile> files;
  for (int i = 0; i < 100; ++i) {
    auto pair = laion_files(0, i);
    if (i % 10 == 1) pair[0].bytes.resize(pair[0].bytes.size() / 2);
    if (i % 10 == 2) pair[1].bytes = "\xff\xfe";
    if (i % 10 == 3) pair.pop_back();
    files.insert(files.end(), pair.begin(), pair.end());
  }
  shards.add(tar_of(files));
  DataConfig config = laion_config(shards.pattern(), 5);
  config.max_bad_fraction = 0.5;
  Loader loader(config, context());
  keys_of(loader, 14);
  loader.next();  // of the second pass
  const Counts counts = loader.counts()[0].second;
  EXPECT_GE(counts.dropped.at("bad_image"), 10);
  EXPECT_GE(counts.dropped.at("bad_text"), 10);
  EXPECT_GE(counts.dropped.at("no_caption_or_image"), 10);
  EXPECT_EQ(counts.num_damaged(), counts.dropped.at("bad_image") + counts.dropped.at("bad_text"));

  config.max_bad_fraction = 0.05;
  Loader strict(config, context());
  try {
    for (int i = 0; i < 14; ++i) strict.next();
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("data.max_bad_fraction"), std::string::npos);
  }
}

TEST(Loader, ReadersAreNeverFurtherAheadThanTheirQueues) {
  const auto shards = laion_shards(4, 500);
  DataConfig config = laion_config(shards->pattern(), 8);
  config.workers = 2;
  config.threads = 2;
  config.shuffle = {100, 50, {kMiB}};
  Loader loader(config, context());
  for (int i = 0; i < 100; ++i) loader.next();
  const SourceUsage usage = loader.usage()[0];
  // Of each worker: the batch that is being filled, one that waits, four samples per thread, and
  // one that a worker with nothing queued may always read.
  EXPECT_LE(usage.most_samples_ahead, 2 * (2 * 8 + 4 * 2 + 1));
  EXPECT_GT(usage.most_samples_ahead, 8);
  EXPECT_LE(usage.most_shuffle_bytes, kMiB + 2 * 2000);
}

TEST(Loader, AShuffleBufferKeepsToItsBytes) {
  const auto shards = laion_shards(2, 1000);
  DataConfig config = laion_config(shards->pattern(), 10);
  config.shuffle = {5000, 1000, {64 * kKiB}};
  config.block<LaionConfig>()->num_samples = 2000;
  Loader loader(config, context());
  const auto keys = keys_of(loader, 200);
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), 2000U);
  EXPECT_LE(loader.usage()[0].most_shuffle_bytes, 64 * kKiB);
  EXPECT_GT(loader.usage()[0].most_shuffle_bytes, 60 * kKiB);
}

TEST(Loader, MemoryStaysFlatOverAHundredThousandSamples) {
  const auto shards = laion_shards(5, 1000);
  DataConfig config = laion_config(shards->pattern(), 100);
  config.shuffle = {2000, 1000, {4 * kMiB}};
  Loader loader(config, context());
  SourceUsage early;
  std::size_t early_state = 0;
  for (int i = 0; i < 1000; ++i) {
    loader.next();
    if (i == 99) {
      early = loader.usage()[0];
      early_state = loader.state().save().dump().size();
    }
  }
  const SourceUsage late = loader.usage()[0];
  EXPECT_EQ(loader.counts()[0].second.samples, 100'000);
  // A batch that is written, one that is filled, four samples per thread, and the one that a worker
  // with nothing queued may always read.
  EXPECT_LE(late.most_samples_ahead, 200 + 4 * 2 + 1);
  EXPECT_LE(late.most_bytes_ahead, early.most_bytes_ahead * 5 / 4);
  EXPECT_LE(late.most_shuffle_bytes, 4 * kMiB);
  EXPECT_LE(loader.state().save().dump().size(), early_state + 2000);
}

TEST(Loader, CanBeLeftAtAnyMoment) {
  const auto shards = laion_shards(2, 200);
  for (int steps = 0; steps < 20; ++steps) {
    DataConfig config = laion_config(shards->pattern(), 7);
    config.workers = 2;
    config.threads = 3;
    config.shuffle = {50, 20, {kMiB}};
    Loader loader(config, context());
    for (int i = 0; i < steps; ++i) loader.next();
  }
}

TEST(Loader, PreparedBatchesLoseTheirPadding) {
  const std::string folder = std::string(std::getenv("FLOE_SOURCE_DIR")) + "/tests/goldens/models/";
  DataConfig config;
  config.batches = folder + "opt_x1-train/batches.safetensors";
  LoaderContext at = context();
  at.tokenizer = nullptr;
  Loader loader(config, at);
  EXPECT_EQ(loader.steps_per_epoch(), 5);
  const Batch step = loader.next();
  ASSERT_EQ(step.sources.size(), 2U);
  EXPECT_EQ(source_name(step.sources[0].source), "laion");
  EXPECT_EQ(source_name(step.sources[1].source), "mmc4");
  EXPECT_EQ(step.sources[0].num_sequences(), 2);
  EXPECT_EQ(step.sources[0].num_images(), 2);
  EXPECT_EQ(step.shape.width, 32);
  const SafetensorsFile file(*config.batches);
  const TensorInfo& mask = file.get("step0.laion.attention_mask");
  std::vector<std::int64_t> ones(static_cast<std::size_t>(mask.numel()));
  file.read(mask, 0, mask.numel(), std::as_writable_bytes(std::span(ones)));
  EXPECT_EQ(static_cast<std::int64_t>(step.sources[0].ids.size()),
            std::count(ones.begin(), ones.end(), 1));
  const TensorInfo& images = file.get("step0.laion.images_i8");
  std::vector<std::int8_t> values(static_cast<std::size_t>(images.numel()));
  file.read(images, 0, images.numel(), std::as_writable_bytes(std::span(values)));
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(step.images->data()[i], static_cast<float>(values[i]) / 64);
  for (int i = 1; i < 4; ++i) loader.next();
  EXPECT_TRUE(loader.next().ends_epoch);
  EXPECT_EQ(loader.next().epoch, 1);

  const std::vector<nlohmann::json> saved{loader.state().save()};
  const std::uint64_t expected = fingerprint(loader.next());
  Loader again(config, at, saved);
  EXPECT_EQ(fingerprint(again.next()), expected);
}

// Neither a wait nor the end of a loader takes as long as a command that does not answer.
TEST(Loader, AWaitForACommandCanBeGivenUp) {
  Loader loader(laion_config("pipe:sleep 1000", 1), context());
  EXPECT_THROW(loader.next([] { throw Error("given up"); }), Error);
}

}  // namespace
}  // namespace floe::data::loader_test
