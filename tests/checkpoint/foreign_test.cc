// A file whose tensors are made of several parameters, as a table with trained rows is.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "floe/checkpoint/checkpointer.h"
#include "floe/comm/world.h"
#include "floe/io/torch_file/torch_file.h"
#include "floe/models/transformer.h"
#include "floe/nn/load.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/group/flat_group.h"

namespace floe::checkpoint::foreign_test {
namespace {

namespace fs = std::filesystem;

// The tensor "table" in the file is the parameter norm.weight (which trains) and then norm.bias
// (which does not); all else has its own name.
class Untabled : public TensorSource {
 public:
  explicit Untabled(std::shared_ptr<const TensorSource> file) : file_(std::move(file)) {
    for (const std::string& name : file_->names())
      if (name != "table") infos_[name] = file_->get(name);
    if (const TensorInfo* table = file_->find("table"))
      for (const char* name : {"norm.weight", "norm.bias"})
        infos_[name] = {name, {table->numel() / 2}, table->dtype, {}};
  }
  std::vector<std::string> names() const override { return names_in(infos_); }
  const TensorInfo* find(const std::string& name) const override {
    const auto found = infos_.find(name);
    return found == infos_.end() ? nullptr : &found->second;
  }
  void read(const TensorInfo& tensor, std::int64_t first, std::int64_t count,
            std::span<std::byte> out) const override {
    if (!tensor.name.starts_with("norm."))
      return file_->read(file_->get(tensor.name), first, count, out);
    const std::int64_t before = tensor.name == "norm.bias" ? tensor.numel() : 0;
    file_->read(file_->get("table"), before + first, count, out);
  }

 private:
  std::shared_ptr<const TensorSource> file_;
  std::map<std::string, TensorInfo> infos_;
};

struct Case {
  Case(const fs::path& folder, std::uint64_t seed) {
    shard::ShardOptions options;
    options.world = comm::World::fake(0, 1);
    options.trainable = {{"norm.weight", "head.*"}};
    options.seed = seed;
    engine = shard::fully_shard(std::make_shared<models::Transformer>(models::TransformerSize{
                                    .vocab = 11, .dim = 6, .layers = 1, .heads = 2, .context = 4}),
                                {.units = {"DecoderLayer"}}, options);
    optimizer = std::make_unique<optim::AdamW>(*engine, optim::AdamWOptions{});
    CheckpointerOptions given;
    given.config.state_dict_type = Layout::trainable;
    given.config.async = false;
    given.run_folder = folder.string();
    given.engine = engine.get();
    given.optimizers = {{"", optimizer.get()}};
    given.foreign.tensors = {
        {"table", {2, 6}, {{"norm.weight", 0, 6}, {"norm.bias", 0, 6}}, {"tied.table"}},
        {"head.weight", {11, 6}, {{"head.weight", 0, 66}}, {}}};
    given.foreign.to_model = [](std::shared_ptr<const TensorSource> file) {
      return std::make_shared<Untabled>(std::move(file));
    };
    checkpoints = std::make_unique<Checkpointer>(given);
  }
  void fill(double start) {
    for (std::size_t g = 0; g < engine->trainable_groups().size(); ++g) {
      engine->trainable_groups()[g]->slice().add_(start);
      for (const auto& slice : optimizer->state_slices(g)) slice.values.uniform_();
      optimizer->updates(g).fill_(5);
    }
  }
  std::shared_ptr<shard::Engine> engine;
  std::unique_ptr<optim::AdamW> optimizer;
  std::unique_ptr<Checkpointer> checkpoints;
};

TEST(Foreign, ATableOfTrainedAndFrozenParts) {
  const fs::path folder =
      fs::temp_directory_path() / ("floe-foreign-" + std::to_string(::getpid()));
  fs::remove_all(folder);
  Case saved(folder, 1);
  EXPECT_FALSE(saved.checkpoints->resume("auto"));
  saved.fill(0.5);
  saved.checkpoints->save(5, {{"epoch", 2}}, {});

  const TorchFile file((folder / "checkpoints/checkpoint_5.pt").string());
  const at::Tensor table = nn::read_tensor(file, file.get("model_state_dict.table"));
  EXPECT_EQ(table.sizes(), (std::vector<std::int64_t>{2, 6}));
  EXPECT_TRUE(table[0].equal(saved.engine->full_parameter("norm.weight")));
  EXPECT_TRUE(table[1].equal(saved.engine->full_parameter("norm.bias")));
  EXPECT_TRUE(nn::read_tensor(file, file.get("model_state_dict.tied.table")).equal(table));
  // Numbered as they stand in the file; what is frozen has moments of zero.
  const at::Tensor moments =
      nn::read_tensor(file, file.get("optimizer_state_dict.state.0.exp_avg"));
  EXPECT_GT(moments[0].min().item<float>(), 0);
  EXPECT_TRUE(moments[1].equal(at::zeros({6})));
  EXPECT_EQ(nn::read_tensor(file, file.get("optimizer_state_dict.state.1.step")).item<float>(), 5);
  EXPECT_EQ(file.find("optimizer_state_dict.state.2.exp_avg"), nullptr);

  // Once as floe's own, once as another system's, without the file beside it.
  for (const bool own : {true, false}) {
    if (!own) fs::remove(folder / "checkpoints/checkpoint_5.pt.floe.json");
    Case other(folder / "other", 2);
    const auto restored =
        other.checkpoints->resume((folder / "checkpoints/checkpoint_5.pt").string());
    ASSERT_TRUE(restored);
    EXPECT_EQ(restored->own, own);
    EXPECT_EQ(restored->step, 5);
    EXPECT_EQ(restored->shared.at("epoch"), 2);
    for (std::size_t g = 0; g < saved.engine->trainable_groups().size(); ++g) {
      EXPECT_TRUE(other.engine->trainable_groups()[g]->slice().equal(
          saved.engine->trainable_groups()[g]->slice()));
      EXPECT_EQ(other.optimizer->updates(g).item<float>(), 5);
      for (std::size_t i = 0; i < 2; ++i)
        EXPECT_TRUE(other.optimizer->state_slices(g)[i].values.equal(
            saved.optimizer->state_slices(g)[i].values));
    }
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace floe::checkpoint::foreign_test
