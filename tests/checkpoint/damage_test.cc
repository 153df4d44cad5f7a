// One wrong byte anywhere in a checkpoint is found before anything is loaded, and named.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "floe/checkpoint/checkpointer.h"
#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/load/resume.h"
#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/models/transformer.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/group/flat_group.h"

namespace floe::checkpoint::damage_test {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// One process with a small model, and its checkpoint.
class Damage : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("floe-damage-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    models::TransformerSize size{.vocab = 13, .dim = 6, .layers = 1, .heads = 2, .context = 4};
    shard::ShardOptions options;
    options.world = comm::World::fake(0, 1);
    engine_ = shard::fully_shard(std::make_shared<models::Transformer>(size),
                                 {.units = {"DecoderLayer"}}, options);
    optimizer_ = std::make_unique<optim::AdamW>(*engine_, optim::AdamWOptions{});
    CheckpointerOptions given;
    given.config.state_dict_type = GetParam();
    given.config.async = false;
    given.run_folder = folder_.string();
    given.engine = engine_.get();
    given.optimizers = {{"", optimizer_.get()}};
    checkpoints_ = std::make_unique<Checkpointer>(given);
    checkpoints_->resume("never");
    checkpoints_->save(3, {{"epoch", 1}}, {{"position", 17}});
    saved_ = checkpoints_->last_saved();
  }
  void TearDown() override {
    checkpoints_.reset();
    fs::remove_all(folder_);
  }

  std::vector<fs::path> files() const {
    if (!fs::is_directory(saved_)) return {saved_, saved_.string() + ".floe.json"};
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(saved_)) all.push_back(entry.path());
    std::sort(all.begin(), all.end());
    return all;
  }

  // What a load says; empty when it takes the checkpoint.
  std::string refusal() {
    try {
      checkpoints_->resume(saved_.string());
      return "";
    } catch (const CheckpointError& e) {
      return e.what();
    }
  }

  fs::path folder_, saved_;
  std::shared_ptr<shard::Engine> engine_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::unique_ptr<Checkpointer> checkpoints_;
};

TEST_P(Damage, EveryWrongByteIsFoundAndNamed) {
  ASSERT_EQ(refusal(), "");
  ASSERT_GE(files().size(), GetParam() == Layout::sharded ? 5u : 2u);
  for (const fs::path& path : files()) {
    const std::string good = read(path);
    ASSERT_FALSE(good.empty());
    // Every byte of small files; a prime stride visits all parts of large ones.
    const std::size_t stride = good.size() < 1000 ? 1 : good.size() / 400 | 1;
    for (std::size_t at = 0; at < good.size(); at += stride)
      for (const int bit : {0, 5}) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ 1 << bit);
        write(path, bad);
        const std::string said = refusal();
        ASSERT_NE(said, "") << path << " byte " << at << " bit " << bit;
        ASSERT_NE(said.find(path.filename().string()), std::string::npos) << said;
      }
    for (const std::string& bad : {good.substr(0, good.size() - 1), good + "x", std::string()}) {
      write(path, bad);
      const std::string said = refusal();
      ASSERT_NE(said.find(path.filename().string()), std::string::npos) << said;
    }
    if (path.filename() != "floe.json" && !path.string().ends_with(".floe.json")) {
      // Without floe's own file it is another system's checkpoint, which has no checksums.
      fs::remove(path);
      ASSERT_NE(refusal(), "") << path << " is missing";
    }
    write(path, good);
  }
  EXPECT_EQ(refusal(), "");
}

// Each of several ranks looks at its part of the files; a byte that is wrong is in somebody's.
TEST_P(Damage, EveryWrongByteIsInTheShareOfOneRank) {
  const Manifest manifest = read_manifest(manifest_path(saved_.string()));
  const auto finders = [&](int parts) {
    int found = 0;
    for (int part = 0; part < parts; ++part) try {
        verify(saved_.string(), manifest, part, parts);
      } catch (const CheckpointError&) {
        ++found;
      }
    return found;
  };
  for (const fs::path& path : files()) {
    if (path.string().ends_with("floe.json")) continue;  // every rank reads it
    const std::string good = read(path);
    for (const int parts : {1, 2, 5, 64}) {
      ASSERT_EQ(finders(parts), 0);
      for (std::size_t at = 0; at < good.size(); at += good.size() / 9 | 1) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ 4);
        write(path, bad);
        ASSERT_GE(finders(parts), 1) << path << " byte " << at << " of " << parts << " parts";
      }
      write(path, good + "x");
      ASSERT_GE(finders(parts), 1) << path << " is too long";
      fs::remove(path);
      ASSERT_GE(finders(parts), 1) << path << " is missing";
      write(path, good);
    }
  }
}

TEST_P(Damage, WeightsStayAsTheyWereWhenACheckpointIsRefused) {
  const at::Tensor before = engine_->trainable_groups()[0]->slice().clone();
  engine_->trainable_groups()[0]->slice().add_(1);
  const fs::path data = GetParam() == Layout::sharded ? saved_ / "__0_0.distcp" : saved_;
  const std::string good = read(data);
  std::string bad = good;
  bad[bad.size() - 1] = static_cast<char>(bad[bad.size() - 1] ^ 1);
  write(data, bad);
  EXPECT_NE(refusal(), "");
  EXPECT_TRUE(engine_->trainable_groups()[0]->slice().equal(before + 1));
  write(data, good);
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(engine_->trainable_groups()[0]->slice().equal(before));
}

INSTANTIATE_TEST_SUITE_P(Layouts, Damage,
                         testing::Values(Layout::sharded, Layout::full, Layout::trainable),
                         [](const auto& info) {
                           return info.param == Layout::sharded ? "Sharded"
                                  : info.param == Layout::full  ? "Full"
                                                                : "Trainable";
                         });

}  // namespace
}  // namespace floe::checkpoint::damage_test
