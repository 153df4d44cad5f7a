// Checkpoints as a training loop of one's own has them: what goes in comes out, and what cannot be
// is said. Training with them on several ranks is tests/consumer.
#include "floe/checkpoint/checkpoints.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "floe/checkpoint/checkpointer.h"
#include "floe/checkpoint/folder/folders.h"
#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/load/resume.h"
#include "floe/checkpoint/save/commit_point.h"
#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "floe/models/transformer.h"
#include "floe/optim/ema.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/flat_group.h"
#include "tests/support/few_descriptors.h"

namespace floe::checkpoint::checkpoints_test {
namespace {

namespace fs = std::filesystem;

class OwnLoop : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (fs::temp_directory_path() / ("floe-own-" + std::to_string(::getpid()))).string();
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static std::shared_ptr<shard::Engine> make_engine(std::uint64_t seed,
                                                    std::vector<shard::ParameterSet> sets = {}) {
    models::TransformerSize size{.vocab = 13, .dim = 6, .layers = 2, .heads = 2, .context = 4};
    shard::ShardOptions options;
    options.world = comm::World::fake(0, 1);
    options.sets = std::move(sets);
    options.seed = seed;
    return shard::fully_shard(std::make_shared<models::Transformer>(size),
                              {.units = {"DecoderLayer"}}, options);
  }
  static at::Tensor weight(shard::Engine& engine) {
    return engine.full_parameter(engine.model().named_parameters().keys().front()).clone();
  }

  std::string folder_;
};

template <class Kind, class F>
std::string refusal(F&& call) {
  try {
    call();
  } catch (const Kind& error) {
    return error.what();
  }
  return "nothing was refused";
}

// Until 2026-11-17 the manifest had the states of all ranks in it.
TEST_F(OwnLoop, TheManifestOfAnOlderVersionIsRead) {
  const auto engine = make_engine(1);
  CheckpointerOptions options;
  options.run_folder = folder_;
  options.engine = engine.get();
  {
    Checkpointer checkpoints(options);
    checkpoints.save(1, {{"epoch", 1}}, {{"position", 17}});
    checkpoints.wait();
  }
  const fs::path saved = fs::path(folder_) / "checkpoints" / "step_1";
  const std::string states = (saved / kStatesFile).string(), file = (saved / "floe.json").string();
  nlohmann::json manifest = read_sealed(file);
  ASSERT_EQ(manifest.at("format"), 2);
  ASSERT_EQ(manifest.at("ranks").dump().find("position"), std::string::npos) << "they lie apart";
  manifest["format"] = 1;
  manifest["ranks"] = {{{"position", 17}}};
  manifest["file_bytes"].erase(kStatesFile);
  auto& ranges = manifest["ranges"];
  ranges.erase(std::find_if(ranges.begin(), ranges.end(),
                            [](const auto& range) { return range[0] == kStatesFile; }));
  write_sealed(file, manifest);
  fs::remove(states);

  Checkpointer checkpoints(options);
  const auto restored = checkpoints.resume("auto");
  ASSERT_TRUE(restored);
  EXPECT_EQ(restored->step, 1);
  EXPECT_EQ(restored->ranks.of(0), nlohmann::json({{"position", 17}}));
  EXPECT_EQ(restored->ranks.all().size(), 1u);
}

TEST_F(OwnLoop, WhatGoesInComesOut) {
  const auto engine = make_engine(1);
  optim::AdamW optimizer(*engine, {});
  optim::Ema ema(*engine, 0.5);
  {
    Checkpoints checkpoints(*engine, {.folder = folder_, .optimizers = {&optimizer}, .ema = &ema});
    EXPECT_FALSE(checkpoints.resume());
    EXPECT_EQ(checkpoints.last_saved(), "");
    for (const std::int64_t step : {1, 2, 3})
      checkpoints.save(step, {.shared = "größe \"2\"\n", .this_rank = std::to_string(step)});
    checkpoints.wait();
    EXPECT_EQ(fs::path(checkpoints.last_saved()).filename(), "step_3");
  }
  const fs::path saved = fs::path(folder_) / "checkpoints";
  EXPECT_FALSE(fs::exists(saved / "step_1"));  // two stay
  EXPECT_TRUE(fs::exists(saved / "step_2"));

  const auto other = make_engine(2);
  ASSERT_FALSE(at::equal(weight(*engine), weight(*other)));
  Checkpoints checkpoints(*other, {.folder = folder_});
  const auto resumed = checkpoints.resume();
  ASSERT_TRUE(resumed);
  EXPECT_EQ(resumed->step, 3);
  EXPECT_EQ(resumed->shared, "größe \"2\"\n");
  EXPECT_EQ(resumed->ranks, std::vector<std::string>{"3"});
  EXPECT_EQ(fs::path(resumed->path).filename(), "step_3");
  EXPECT_TRUE(at::equal(weight(*engine), weight(*other)));

  const auto third = make_engine(3);
  Checkpoints elsewhere(*third, {.folder = folder_ + "/elsewhere"});
  EXPECT_EQ(elsewhere.resume_from((saved / "step_2").string()).step, 2);
  EXPECT_TRUE(at::equal(weight(*engine), weight(*third)));
}

// The loop goes on while it is written, and changes everything.
TEST_F(OwnLoop, WhatIsSavedIsOfTheMomentOfTheSave) {
  const auto engine = make_engine(1);
  const at::Tensor before = weight(*engine);
  {
    Checkpoints checkpoints(*engine, {.folder = folder_});
    checkpoints.save(1, {});
    for (const auto& group : engine->trainable_groups()) group->slice().zero_();
    checkpoints.wait();
  }
  ASSERT_FALSE(at::equal(weight(*engine), before));
  const auto other = make_engine(2);
  ASSERT_TRUE(Checkpoints(*other, {.folder = folder_}).resume());
  EXPECT_TRUE(at::equal(weight(*other), before));
}

// A good checkpoint that cannot be looked at is not passed over: the run would go on from an older
// one, or begin anew, and remove the good one in time.
TEST_F(OwnLoop, WantOfDescriptorsIsNoReasonToBeginAnew) {
  if (!test::kMayLackDescriptors) GTEST_SKIP();
  const auto engine = make_engine(1);
  Checkpoints(*engine, {.folder = folder_}).save(1, {});
  Checkpoints later(*engine, {.folder = folder_});
  {
    const test::FewDescriptors few;
    EXPECT_THROW(newest_whole(folder_, Reading::sizes), ResourceError);
    EXPECT_THROW(later.resume(), ResourceError);
  }
  EXPECT_EQ(fs::path(newest_whole(folder_, Reading::sizes).path).filename(), "step_1");
}

TEST_F(OwnLoop, SetsKeepTheirNames) {
  const std::vector<shard::ParameterSet> sets{{.name = "one", .patterns = {"*.0.*"}},
                                              {.name = "two", .patterns = {"*.1.*"}}};
  {
    const auto engine = make_engine(1, sets);
    optim::AdamW one(*engine, {}, 0), two(*engine, {}, 1);
    Checkpoints checkpoints(*engine, {.folder = folder_, .optimizers = {&one, &two}});
    checkpoints.resume();
    engine->activate(1);
    checkpoints.save(1);
  }
  const auto engine = make_engine(2, sets);
  optim::AdamW one(*engine, {}, 0), two(*engine, {}, 1);
  Checkpoints checkpoints(*engine, {.folder = folder_, .optimizers = {&two, &one}});
  const auto resumed = checkpoints.resume();
  ASSERT_TRUE(resumed);
  EXPECT_TRUE(resumed->anew.empty());
  EXPECT_EQ(engine->active_set(), 1u);
}

TEST_F(OwnLoop, WhatCannotBeIsSaid) {
  const auto engine = make_engine(1), other = make_engine(1);
  optim::AdamW optimizer(*engine, {}), foreign(*other, {});
  const auto made_with = [&](CheckpointsOptions options) {
    return refusal<ConfigError>([&] { Checkpoints checkpoints(*engine, std::move(options)); });
  };
  EXPECT_EQ(made_with({}), "CheckpointsOptions::folder is empty: name the folder of the run");
  EXPECT_EQ(made_with({.folder = folder_, .optimizers = {&foreign}}),
            "CheckpointsOptions::optimizers has one of another engine");
  EXPECT_EQ(made_with({.folder = folder_, .optimizers = {&optimizer, &optimizer}}),
            "CheckpointsOptions::optimizers has two of set 0; pass one for each set");

  Checkpoints checkpoints(*engine, {.folder = folder_, .optimizers = {&optimizer}});
  EXPECT_EQ(refusal<ConfigError>([&] { checkpoints.save(1, {.shared = "\xff"}); }),
            "OwnState::shared of a checkpoint is no UTF-8 text; encode bytes first");
  EXPECT_NE(refusal<CheckpointError>([&] {
              checkpoints.resume_from(folder_ + "/gone");
            }).find("does not exist"),
            std::string::npos);
}

std::string content(const fs::path& folder) {
  std::string text;
  std::getline(std::ifstream(folder / "text"), text);
  return text;
}

// An older save that is committed while the ranks write what is newer must not take that away.
TEST_F(OwnLoop, WhatIsWrittenApartOutlivesTheSaveUnderWay) {
  const auto engine = make_engine(1);
  optim::AdamW optimizer(*engine, {});
  CheckpointerOptions options;
  options.run_folder = folder_;
  options.engine = engine.get();
  options.optimizers = {{"", &optimizer}};
  const fs::path saved = fs::path(folder_) / "checkpoints";
  {
    Checkpointer checkpoints(options);
    checkpoints.resume("never");
    EXPECT_EQ(checkpoints.expected_seconds(), 0) << "nobody knows";
    // The save stands still until the part of the other is there.
    static fs::path folder;
    folder = saved;
    at_commit_point = [](const char* point) {
      const auto is_part = [](const fs::directory_entry& entry) {
        return entry.path().filename().string().starts_with(kEmergencyPart) &&
               fs::exists(entry.path() / "floe_rank_0.json");
      };
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (std::string(point) == "all written" && std::chrono::steady_clock::now() < end &&
             std::none_of(fs::directory_iterator(folder), fs::directory_iterator(), is_part))
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    };
    checkpoints.save(1, {{"epoch", 1}}, {{"position", 1}});
    EXPECT_GT(checkpoints.expected_seconds(), 0) << "at least as long as the one under way has";
    checkpoints.save_apart(2, {{"epoch", 2}}, {{"position", 2}});
    at_commit_point = nullptr;
    EXPECT_EQ(fs::path(checkpoints.last_saved()).filename(), "on_exception");
    EXPECT_TRUE(checkpoints.wait());
  }
  EXPECT_TRUE(fs::exists(saved / "step_1"));
  Checkpointer checkpoints(options);
  const auto restored = checkpoints.resume("auto");
  ASSERT_TRUE(restored);
  EXPECT_EQ(restored->step, 2);
  EXPECT_TRUE(restored->emergency);
  const std::vector<nlohmann::json> expected{nlohmann::json{{"position", 2}}};
  EXPECT_EQ(restored->ranks.all(), expected);
  checkpoints.save(3, {}, {});
  EXPECT_TRUE(checkpoints.wait());
  EXPECT_FALSE(fs::exists(saved / "on_exception")) << "the next good save retires it";
}

void make(const fs::path& folder, const std::string& text) {
  fs::create_directories(folder);
  std::ofstream(folder / "text") << text;
}

// Where a file system cannot exchange two names there is a moment without the one that counts.
TEST(Replace, InTwoStepsLosesNothingInBetween) {
  const fs::path folder =
      fs::temp_directory_path() / ("floe-replace-" + std::to_string(::getpid()));
  const std::string from = folder / ".tmp-step_5", to = folder / "step_5";
  make(to, "old");
  make(from, "new");
  struct Ended {};
  at_commit_point = [](const char* point) {
    if (std::string(point) == "replacing") throw Ended();
  };
  EXPECT_THROW(replace_in_two_steps(from, to), Ended);
  at_commit_point = nullptr;
  EXPECT_FALSE(fs::exists(to));
  remove_leftovers(folder);
  EXPECT_EQ(content(to), "old");

  make(from, "new");
  replace_in_two_steps(from, to);
  EXPECT_EQ(content(to), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace floe::checkpoint::checkpoints_test
