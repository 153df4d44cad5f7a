// A loader that is saved and made again goes on with the next sample.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "floe/data/loader/epoch_rest.h"
#include "tests/data/loader_corpus.h"

namespace floe::data::resume_test {
namespace {

using Saved = std::vector<nlohmann::json>;

// Saved after each step and made again at some: everything that follows is the same.
void expect_exact_resume(const DataConfig& config, int steps, int every) {
  Loader whole(config, context());
  std::vector<std::uint64_t> expected;
  std::vector<std::string> states{whole.state().save().dump()};
  std::vector<std::string> reports{whole.report()};
  for (int i = 0; i < steps; ++i) {
    expected.push_back(fingerprint(whole.next()));
    states.push_back(whole.state().save().dump());
    reports.push_back(whole.report());
  }
  for (int begin = 0; begin < steps; begin += every) {
    const Saved saved{nlohmann::json::parse(states[static_cast<std::size_t>(begin)])};
    Loader again(config, context(), saved);
    ASSERT_EQ(again.state().save().dump(), states[static_cast<std::size_t>(begin)]);
    for (int i = begin; i < std::min(steps, begin + 12); ++i) {
      ASSERT_EQ(fingerprint(again.next()), expected[static_cast<std::size_t>(i)])
          << "from " << begin << " at " << i;
      ASSERT_EQ(again.report(), reports[static_cast<std::size_t>(i) + 1]);
    }
    ASSERT_EQ(again.state().save().dump(),
              states[static_cast<std::size_t>(std::min(steps, begin + 12))]);
  }
}

TEST(Resume, IsExactAtEverySample) {
  const auto shards = laion_shards(4, 15);
  DataConfig config = laion_config(shards->pattern(), 1);
  config.block<LaionConfig>()->num_samples = 50;
  config.shuffle = {12, 5, {kMiB}};
  expect_exact_resume(config, 130, 1);
}

TEST(Resume, IsExactWithSeveralWorkersAndPasses) {
  const auto shards = laion_shards(6, 11);
  for (const Rules rules : {Rules::openflamingo, Rules::corrected}) {
    DataConfig config = laion_config(shards->pattern(), 4);
    config.rules = rules;
    config.workers = 3;
    config.block<LaionConfig>()->num_samples = 200;  // several passes an epoch
    config.shuffle = {9, 5, {kMiB}};
    expect_exact_resume(config, 120, 5);
  }
}

TEST(Resume, IsExactWithResampling) {
  const auto shards = laion_shards(4, 9);
  DataConfig config = laion_config(shards->pattern(), 3);
  config.resampled = true;
  config.workers = 2;
  config.shuffle = {20, 10, {kMiB}};
  expect_exact_resume(config, 60, 7);
}

TEST(Resume, IsExactWithBoundedBytesAndBadShards) {
  const auto shards = laion_shards(6, 20);
  std::filesystem::resize_file(shards->path(2), 20'000);
  std::filesystem::remove(shards->path(4));
  DataConfig config = laion_config(shards->pattern(), 3);
  config.shuffle = {500, 100, {8 * kKiB}};
  config.block<LaionConfig>()->num_samples = 150;
  expect_exact_resume(config, 70, 3);
}

TEST(Resume, IsExactWithDocuments) {
  const auto pairs = laion_shards(2, 40);
  Shards documents;
  for (int i = 0; i < 2; ++i) documents.add(mmc4_shard(i, 20));
  DataConfig config = laion_config(pairs->pattern(), 2);
  config.block<Mmc4Config>().emplace();
  config.block<Mmc4Config>()->shards = documents.pattern();
  config.block<Mmc4Config>()->batch_size = 3;
  config.shuffle = {10, 5, {kMiB}};
  expect_exact_resume(config, 40, 4);
}

TEST(Resume, StateIsSmall) {
  const auto shards = laion_shards(10, 1000);
  DataConfig config = laion_config(shards->pattern(), 50);
  Loader loader(config, context());  // a buffer of 5000
  keys_of(loader, 150);
  EXPECT_LT(loader.state().save().dump().size(), 100'000U);
}

TEST(Resume, ThreadsAndBatchSizeMayChange) {
  const auto shards = laion_shards(4, 50);
  DataConfig config = laion_config(shards->pattern(), 6);
  config.shuffle = {30, 10, {kMiB}};
  Loader loader(config, context());
  keys_of(loader, 5);
  const Saved saved{loader.state().save()};
  const auto expected = keys_of(loader, 10);
  config.threads = 5;
  config.block<LaionConfig>()->batch_size = 3;
  Loader again(config, context(), saved);
  EXPECT_EQ(keys_of(again, 20), expected);
}

// What all ranks of a world have given, and their states.
struct WorldRun {
  std::multiset<std::string> keys;
  Saved states;
};

WorldRun run_world(const DataConfig& config, int world, int steps, const Saved& from) {
  WorldRun run;
  for (int rank = 0; rank < world; ++rank) {
    Loader loader(config, context(rank, world), from);
    const auto keys = keys_of(loader, steps);
    run.keys.insert(keys.begin(), keys.end());
    run.states.push_back(loader.state().save());
  }
  return run;
}

// A state has tens of kilobytes, and there may be a thousand of them.
TEST(Resume, ARankOfTheSameWorldAsksForItsOwnStateAlone) {
  const auto shards = laion_shards(6, 10);
  const DataConfig config = laion_config(shards->pattern(), 2);
  const WorldRun first = run_world(config, 3, 2, {});
  std::vector<std::int64_t> asked;
  int asked_for_all = 0;
  const SavedRanks held = SavedRanks::held(first.states);
  const SavedRanks saved{3,
                         [&](std::int64_t rank) {
                           asked.push_back(rank);
                           return held.of(rank);
                         },
                         [&] {
                           ++asked_for_all;
                           return held.all();
                         }};
  Loader same(config, context(1, 3), saved);
  EXPECT_EQ(asked, std::vector<std::int64_t>{1});
  EXPECT_EQ(asked_for_all, 0);
  EXPECT_EQ(same.state().save(), first.states[1]);
  Loader fewer(config, context(1, 2), saved);
  EXPECT_EQ(asked_for_all, 1) << "what is left is dealt anew";
}

// Real shards and readers, one rank after the other. Streams have shares of different sizes, so a
// rank may begin its next pass a little before others end theirs: up to the smallest share nothing
// comes twice, and up to the largest one everything has come.
void expect_rest_dealt(int before, int after) {
  constexpr int kSamples = 3;
  const int num_shards = 2 * std::max(before, after), all = num_shards * kSamples;
  const auto shards = laion_shards(num_shards, kSamples);
  DataConfig config = laion_config(shards->pattern(), 1);
  config.shuffle = {5, 2, {kMiB}};
  config.threads = 1;
  config.block<LaionConfig>()->num_samples = 4 * all;  // no epoch ends before all has come
  const int first_steps = all / 3 / before;
  const WorldRun first = run_world(config, before, first_steps, {});
  const auto distinct = [](const std::multiset<std::string>& keys) {
    return std::set<std::string>(keys.begin(), keys.end()).size();
  };
  ASSERT_EQ(distinct(first.keys), first.keys.size()) << "nothing comes twice before";

  const int share = (all - static_cast<int>(first.keys.size())) / after;
  const int least = std::max(1, share * 3 / 4 - kSamples), most = share * 3 / 2 + 2 * kSamples;
  std::multiset<std::string> up_to_least = first.keys, up_to_most = first.keys;
  for (int rank = 0; rank < after; ++rank) {
    Loader loader(config, context(rank, after), first.states);
    for (int step = 0; step < most; ++step) {
      const auto keys = keys_of(loader, 1);
      if (step < least) up_to_least.insert(keys.begin(), keys.end());
      up_to_most.insert(keys.begin(), keys.end());
    }
  }
  EXPECT_EQ(distinct(up_to_least), up_to_least.size()) << "nothing is repeated";
  EXPECT_EQ(distinct(up_to_most), static_cast<std::size_t>(all)) << "nothing is lost";
}

// A thousand ranks, which takes a minute, where FLOE_LONG is set.
int many_ranks() { return std::getenv("FLOE_LONG") ? 1024 : 64; }

TEST(ManyRanks, WhatTheyLeftIsDealtToFewer) {
  expect_rest_dealt(many_ranks(), many_ranks() * 3 / 32);
}
TEST(ManyRanks, WhatEightRanksLeftIsDealtToMany) { expect_rest_dealt(8, many_ranks()); }

TEST(Resume, AnotherWorldSizeLosesAndRepeatsNothing) {
  const auto shards = laion_shards(12, 10);
  for (const Rules rules : {Rules::openflamingo, Rules::corrected})
    for (const auto& [before, after, workers] :
         {std::tuple{2, 3, 1}, {3, 2, 1}, {4, 1, 2}, {1, 4, 1}}) {
      DataConfig config = laion_config(shards->pattern(), 1);
      config.rules = rules;
      config.shuffle = {15, 8, {kMiB}};
      config.block<LaionConfig>()->num_samples = 120;
      const int first_steps = 48 / before;
      WorldRun first = run_world(config, before, first_steps, {});
      EXPECT_EQ(first.keys.size(), 48U);
      config.workers = workers;
      const int rest = 72 / after;
      WorldRun second = run_world(config, after, rest, first.states);
      std::multiset<std::string> all = first.keys;
      all.insert(second.keys.begin(), second.keys.end());
      EXPECT_EQ(all.size(), 120U);
      // Streams have shares of different sizes, so some begin their next pass a little before
      // others end theirs; but by then nearly everything has come, and nothing was left behind.
      const std::set<std::string> distinct(all.begin(), all.end());
      EXPECT_GE(distinct.size(), 108U) << before << " to " << after;
      const WorldRun third = run_world(config, after, 1, second.states);
      EXPECT_EQ(third.keys.size(), static_cast<std::size_t>(after));
    }
}

TEST(EpochRest, DealsEverythingOnce) {
  const auto shards = laion_shards(9, 10);
  DataConfig config = laion_config(shards->pattern(), 1);
  config.shuffle = {12, 6, {kMiB}};
  StreamSetup setup;
  setup.shards = {9, 7, 1, {0, 1, 0, 1}, Rules::openflamingo, false};
  setup.shuffle = {12, 6, kMiB};
  // One stream that has read a part.
  StreamState state(setup, 0);
  ReaderOptions options;
  auto list = std::make_shared<std::vector<std::string>>();
  for (int i = 0; i < 9; ++i) list->push_back(shards->path(i));
  options.shards = list;
  StreamReader reader(state.position, std::nullopt, options);
  std::multiset<std::string> keys;
  for (int i = 0; i < 37; ++i) {
    const ReadResult given = reader.next();
    state.position.advance(given.progress);
    state.position.give();
    keys.insert(given.raw.key);
  }
  state.position.shards().forget_before(state.position.oldest_ordinal());
  const EpochRest rest = rest_of(std::span(&state, 1));
  EXPECT_GT(rest.samples.size(), 0U);
  for (int stream = 0; stream < 4; ++stream) {
    StreamReader own(deal(rest, setup, stream, 4, 0).position, std::nullopt, options);
    for (ReadResult given = own.next(); given.kind != ReadResult::Kind::pass_end;
         given = own.next())
      keys.insert(given.raw.key);
  }
  EXPECT_EQ(keys.size(), 90U);
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), 90U);
}

// What a loader says that is to go on with other data.
std::string difference(const DataConfig& config, const Saved& saved, std::uint64_t seed = 7) {
  try {
    Loader(config, context(0, 1, seed), saved);
  } catch (const OtherData& error) {
    return error.what();
  }
  return "none";
}

TEST(Resume, OtherDataIsAnErrorThatNamesTheDifference) {
  const auto shards = laion_shards(3, 10), more = laion_shards(4, 10), other = laion_shards(3, 10);
  const DataConfig config = laion_config(shards->pattern(), 2);
  Loader loader(config, context());
  loader.next();
  const Saved saved{loader.state().save()};
  EXPECT_EQ(difference(config, saved), "none");
  EXPECT_EQ(
      difference(laion_config(more->pattern(), 2), saved),
      str("data.laion.shards was '", shards->pattern(),
          "', 3 shards when the checkpoint was made and is '", more->pattern(),
          "', 4 shards now; set it back, or set run.resume_data=restart to begin the data anew "
          "with weights, optimizer and step kept"));
  EXPECT_NE(difference(laion_config(other->pattern(), 2), saved).find("data.laion.shards was "),
            std::string::npos);
  EXPECT_EQ(
      difference(config, saved, 8).find("run.seed was 7 when the checkpoint was made and is 8"),
      0U);
  DataConfig changed = config;
  changed.rules = Rules::corrected;
  EXPECT_EQ(difference(changed, saved).find("data.rules was openflamingo when"), 0U);
  changed = config;
  changed.resampled = true;
  EXPECT_EQ(difference(changed, saved).find("data.resampled was false when"), 0U);
  changed = config;
  changed.block<Mmc4Config>().emplace();
  changed.block<Mmc4Config>()->shards = shards->pattern();
  EXPECT_EQ(difference(changed, saved)
                .find("data was laion when the checkpoint was made and is "
                      "laion, mmc4 now"),
            0U);
  // One source fewer is as much another as one more.
  Loader both(changed, context());
  EXPECT_EQ(difference(config, Saved{both.state().save()}).find("data was laion, mmc4 when"), 0U);
}

TEST(Resume, ShardsAreKnownAgainByOtherNamesOfTheSameFiles) {
  const auto shards = laion_shards(3, 10);
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(shards->folder.path(""));
  const auto state = [](const std::string& pattern) {
    Loader loader(laion_config(pattern, 2), context());
    loader.next();
    return loader.state().save();
  };
  const std::vector<std::string> spellings{"{0..2}.tar", "./{0..2}.tar", shards->pattern()};
  for (const std::string& saved : spellings)
    for (const std::string& now : spellings)
      EXPECT_EQ(difference(laion_config(now, 2), Saved{state(saved)}), "none") << saved << now;
  // A state of an older floe has one digest, of the names as they were written.
  nlohmann::json older = state("{0..2}.tar");
  nlohmann::json& source = older["sources"][0];
  source["digest"] = source["digests"][0];
  source.erase("digests");
  source.erase("shards");
  EXPECT_EQ(difference(laion_config(shards->pattern(), 2), Saved{older}), "none");
  std::filesystem::current_path(before);
}

TEST(Resume, AnotherBatchSizeInsideAnEpochLosesAndRepeatsNothing) {
  const auto shards = laion_shards(12, 10);
  for (const auto& [before, after] : {std::pair{1, 4}, {4, 1}, {2, 6}}) {
    DataConfig config = laion_config(shards->pattern(), before);
    config.block<LaionConfig>()->num_samples = 120;
    config.shuffle = {15, 8, {kMiB}};
    Loader first(config, context());
    auto keys = keys_of(first, 48 / before);
    config.block<LaionConfig>()->batch_size = after;
    Loader second(config, context(), Saved{first.state().save()});
    for (bool over = false; !over;) {
      const Batch step = second.next();
      over = step.ends_epoch;
      EXPECT_EQ(step.epoch, 0);
      keys.insert(keys.end(), step.sources[0].keys.begin(), step.sources[0].keys.end());
    }
    EXPECT_EQ(keys.size(), 120U) << before << " to " << after;
    EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), 120U);
  }
}

TEST(Resume, OtherDataIsAnError) {
  const auto shards = laion_shards(3, 10);
  DataConfig config = laion_config(shards->pattern(), 2);
  Loader loader(config, context());
  loader.next();
  const Saved saved{loader.state().save()};
  EXPECT_THROW(Loader(config, context(), Saved{saved[0], saved[0]}), DataError);
  DataConfig prepared;
  prepared.batches = std::string(std::getenv("FLOE_SOURCE_DIR")) +
                     "/tests/goldens/models/opt_x1-train/batches.safetensors";
  EXPECT_THROW(Loader(prepared, context(), saved), OtherData);
}

// Every value of a state replaced by others, and every key removed: an error, or a
// loader that runs.
TEST(Resume, DamagedStatesAreErrors) {
  const auto shards = laion_shards(3, 30);
  DataConfig config = laion_config(shards->pattern(), 2);
  config.shuffle = {10, 5, {kMiB}};
  Loader loader(config, context());
  keys_of(loader, 5);
  const nlohmann::json good = loader.state().save().flatten();
  int errors = 0;
  const auto expect_no_crash = [&](const nlohmann::json& flat) {
    try {
      Loader again(config, context(), Saved{flat.unflatten()});
      again.next();
    } catch (const Error&) {
      ++errors;
    }
  };
  for (const auto& [key, value] : good.items()) {
    for (const nlohmann::json& other :
         {nlohmann::json(nullptr), nlohmann::json(-1), nlohmann::json("A"), nlohmann::json(""),
          nlohmann::json(4'000'000'000U), nlohmann::json("/////w"), nlohmann::json(true)}) {
      nlohmann::json bad = good;
      bad[key] = other;
      expect_no_crash(bad);
    }
    nlohmann::json bad = good;
    bad.erase(key);
    expect_no_crash(bad);
  }
  EXPECT_GT(errors, 100);
}

}  // namespace
}  // namespace floe::data::resume_test
