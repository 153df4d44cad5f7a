#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "floe/checkpoint/checkpoint_config.h"
#include "floe/checkpoint/folder/folders.h"
#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/run_state.h"
#include "floe/comm/world.h"
#include "floe/config/yaml.h"
#include "floe/core/error.h"
#include "floe/models/transformer.h"
#include "floe/schema/schema.h"

namespace floe::checkpoint::checkpoint_test {
namespace {

TEST(Folders, StepsOfNames) {
  EXPECT_EQ(step_of_name("step_12"), 12);
  EXPECT_EQ(step_of_name("step_12.pt"), 12);
  EXPECT_EQ(step_of_name("checkpoint_3.pt"), 3);
  for (const char* name : {"step_", "step_x", "step_1x", "checkpoint_3", "last", ".tmp-step_3",
                           "step_-1", "step_99999999999999999999", "step_3.pt.floe.json"})
    EXPECT_FALSE(step_of_name(name)) << name;
}

// What is stored in 8 bits is not what was read.
TEST(Content, FullIsRefusedForFrozenMatricesInEightBits) {
  shard::ShardOptions options;
  options.world = comm::World::fake(0, 1);
  options.trainable = {{"norm.*"}};
  options.frozen.dtype = at::kChar;
  const auto model = std::make_shared<models::Transformer>(
      models::TransformerSize{.vocab = 20, .dim = 8, .layers = 1, .heads = 2, .context = 4});
  const auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, options);
  RunState run{.engine = engine.get()};
  std::set<std::string> names;
  for (const StateTensor& tensor : state_tensors(run, Share::held)) names.insert(tensor.name());
  EXPECT_EQ(names, (std::set<std::string>{"model.norm.weight", "model.norm.bias"}));
  run.content = Content::full;
  for (const auto& save : {std::function<void()>([&] { check_savable(run); }),
                           std::function<void()>([&] { state_tensors(run, Share::held); })})
    try {
      save();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const ConfigError& e) {
      EXPECT_STREQ(
          e.what(),
          "'layers.0.attention.qkv.weight' is stored in 8 bits (strategy.frozen.dtype), so "
          "a checkpoint cannot have it as it was read; save with checkpoint.content: "
          "trainable, which names the frozen files, and put both together with floe "
          "export");
    }
}

CheckpointConfig bound(const std::string& yaml) {
  return config::bind<CheckpointConfig>(config::parse_yaml(yaml, "test.yaml"));
}

TEST(Config, DefaultsAndWords) {
  const CheckpointConfig plain = bound("{}");
  EXPECT_EQ(plain.every_steps, 1000);
  EXPECT_EQ(plain.newest_kept(), 2);
  EXPECT_EQ(plain.state_dict_type, Layout::sharded);
  EXPECT_TRUE(plain.async);
  const CheckpointConfig given = bound(
      "{on_failure: continue, state_dict_type: trainable, content: full, keep: null, every_steps: "
      "null,"
      " keep_best: {metric: loss, n: 3, better: higher}}");
  EXPECT_EQ(given.on_failure, OnFailure::keep_running);
  EXPECT_EQ(given.state_dict_type, Layout::trainable);
  EXPECT_EQ(given.content, Content::full);
  EXPECT_FALSE(given.newest_kept());
  EXPECT_FALSE(given.every_steps);
  EXPECT_EQ(given.keep_best.better, Better::higher);
  EXPECT_EQ(bound("{delete_previous_checkpoint: true}").newest_kept(), 1);
}

TEST(Config, WhatCannotBe) {
  for (const char* yaml :
       {"{keep: 0}", "{every_steps: 0}", "{state_dict_type: whole}", "{keep_best: {n: 2}}",
        "{keep_best: {metric: loss}}", "{on_failure: ignore}", "{asynch: true}",
        "{delete_previous_checkpoint: true, keep: 5}"})
    EXPECT_THROW(bound(yaml), ConfigError) << yaml;
}

TEST(SealedJson, EveryWrongByteIsNoticed) {
  const nlohmann::json content{{"step", 3}, {"name", "ä \n"}, {"list", {1, 2.5, nullptr}}};
  const std::string good = seal(content);
  EXPECT_EQ(unseal(good, "file"), content);
  for (std::size_t at = 0; at < good.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1 << bit);
      EXPECT_THROW(unseal(bad, "file"), CheckpointError) << at << " " << bit;
    }
  for (std::size_t length = 0; length < good.size(); ++length)
    EXPECT_THROW(unseal(good.substr(0, length), "file"), CheckpointError) << length;
}

TEST(SealedJson, StringsMayHaveAnyBytes) {
  const nlohmann::json content{{"shard", "\xff.tar"}, {"\xc3", {1, "a\xed\xa0\x80", nullptr}}};
  EXPECT_EQ(unseal(seal(content), "a file"), content);
}

}  // namespace
}  // namespace floe::checkpoint::checkpoint_test
