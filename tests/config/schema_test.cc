#include "floe/schema/schema.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "floe/config/yaml.h"
#include "floe/core/bytes.h"
#include "floe/schema/yaml_text.h"
#include "tests/config/expect_error.h"
#include "tests/config/sample_config.h"

namespace floe::test {

struct Twice {
  int a = 0;
};
void describe(config::Schema<Twice>& s) {
  s.field("a", &Twice::a, "One");
  s.field("a", &Twice::a, "Two");
}

}  // namespace floe::test

namespace floe::config {
namespace {

using test::config_error;
using test::expect_part;
using test::SampleConfig;
using test::strategies;

SampleConfig bound(const std::string& yaml) {
  return bind<SampleConfig>(parse_yaml("run: {name: x}\n" + yaml, "x.yaml"));
}

TEST(Schema, DefaultsAreThoseOfTheStruct) {
  const SampleConfig config = bound("");
  EXPECT_EQ(config.train.steps, 1000);
  EXPECT_EQ(config.train.optimizer.betas, (std::array{0.9, 0.999}));
  EXPECT_EQ(config.train.clip.norm, 1.0);
  EXPECT_EQ(config.train.trainable, std::nullopt);
  EXPECT_FALSE(config.lora);
  EXPECT_EQ(bound("train:\n").train.steps, 1000);  // an empty block
}

TEST(Schema, EveryKindOfField) {
  const SampleConfig config = bound(R"(
train: {steps: 1e4, packed: false, trainable: ["a.*"], clip: {norm: null, value: 3},
        optimizer: {lr: 1, betas: [0, 0.5], type: sgd}}
phases: [{name: a, train: [x]}, {name: b, train: [], steps: 7}]
lora: {rank: 8}
weights: {laion: 0.2, mmc4: 1}
extra: [{free: form}]
dist: {init: "tcp://host:29500", rank: 1, world_size: 2}
strategy: {mixed_precision: {param: float16}, frozen: {residency: auto, memory_budget: 40GiB, dtype: bf16}}
)");
  EXPECT_EQ(config.train.steps, 10000);
  EXPECT_FALSE(config.train.packed);
  EXPECT_EQ(config.train.trainable, std::vector<std::string>{"a.*"});
  EXPECT_EQ(config.train.clip.norm, std::nullopt);
  EXPECT_EQ(config.train.clip.value, 3.0);
  EXPECT_EQ(config.train.optimizer.lr, 1.0);
  EXPECT_EQ(config.phases.at(1).steps, 7);
  EXPECT_EQ(config.phases.at(0).steps, 100);
  EXPECT_EQ(config.lora->rank, 8);
  EXPECT_EQ(config.weights.at("laion"), 0.2);
  EXPECT_EQ(config.extra, parse_yaml("[{free: form}]", "t"));
  EXPECT_EQ(config.dist.world_size, 2);
  EXPECT_EQ(config.strategy.mixed_precision.param, DType::f16);
  EXPECT_EQ(config.strategy.mixed_precision.reduce, DType::f32);
  EXPECT_EQ(config.strategy.frozen.residency, shard::Residency::automatic);
  EXPECT_EQ(config.strategy.frozen.memory_budget->bytes, 40 * kGiB);
  EXPECT_EQ(config.strategy.frozen.dtype, DType::bf16);
}

TEST(Schema, NumbersMayBeNames) {
  EXPECT_EQ(bind<SampleConfig>(parse_yaml("run: {name: 007}", "x")).run.name, "007");
}

TEST(Schema, AllProblemsAtOnce) {
  const std::string message = config_error([] {
    bind<SampleConfig>(parse_yaml(
        "train:\n  stepz: 5\n  packed: maybe\n  clip: {norm: -1}\nphases: [{}, 5]\n", "x.yaml"));
  });
  EXPECT_EQ(message,
            "x.yaml:2:10: unknown key 'train.stepz'; did you mean 'steps'?\n"
            "x.yaml:3:11: train.packed must be true or false, not 'maybe'\n"
            "x.yaml:4:16: train.clip.norm is -1, but must be more than 0\n"
            "x.yaml:5:10: phases[0].name is missing; set it: Name of the phase\n"
            "x.yaml:5:10: phases[0].train is missing; set it: Patterns of what trains\n"
            "x.yaml:5:14: phases[1] must be a block with the keys name, train, steps, not 5");
}

TEST(Schema, DescribingAKeyTwiceIsAMistake) {
  EXPECT_THROW(bind<test::Twice>(Value()), std::logic_error);
}

TEST(Schema, WritesWhatItReads) {
  const SampleConfig config =
      bound("strategy: {frozen: {residency: auto, memory_budget: 1536MiB}}\nlora: {}\n");
  const Value values = schema_of<SampleConfig>().write(config, Write::all);
  EXPECT_EQ(*values.at("strategy.frozen.memory_budget"), Value(std::string("1536MiB")));
  EXPECT_EQ(schema_of<SampleConfig>().write(bind<SampleConfig>(values), Write::all), values);
}

TEST(Schema, HelpNamesEveryKeyItsTypeAndDefault) {
  const std::string text = help_text(fields_of<SampleConfig>());
  expect_part(text, "  run.name  (string, not empty, required)\n      Name of the run\n");
  expect_part(text,
              "  train.steps: 1000  (integer, at least 1)\n      Number of optimizer updates\n");
  expect_part(text, "  train.optimizer.type: adamw  (string, one of adamw, sgd)\n");
  expect_part(
      text,
      "  train.optimizer.betas: [0.9, 0.999]  (list of 2 numbers, at least 0, less than 1)\n");
  expect_part(text, "  phases: []  (list of blocks)\n");
  expect_part(text, "  phases[].name  (string, required)\n");
  expect_part(text, "  lora: null  (block or null)\n");
  expect_part(text, "  lora.rank: 16  (integer, at least 1, at most 4096)\n");
  expect_part(text, str("  strategy.sharding: full_shard  (one of ", strategies(), ")\n"));
  expect_part(text,
              "  strategy.frozen.memory_budget: null  (size such as 40GiB or null, more than 0)\n");
  expect_part(text, "  strategy.frozen.residency: sharded  (one of sharded, resident, auto)\n");
}

TEST(Schema, ReferencePage) {
  const std::string text = markdown_reference(fields_of<SampleConfig>());
  expect_part(text,
              "## `train.optimizer`\n\nOptimizer.\n\n| key | type | default | meaning |\n| --- |");
  expect_part(text, "| `steps` | integer, at least 1 | `1000` | Number of optimizer updates |\n");
  expect_part(text, "| `name` | string, not empty | required | Name of the run |\n");
  expect_part(text, "## `phases`\n");
}

TEST(Schema, TheStrategyDefaultsOfTheDesign) {
  const Value values = schema_of<StrategyConfig>().write(StrategyConfig{}, Write::all);
  EXPECT_EQ(
      values,
      parse_yaml("auto: null\nsharding: full_shard\nhybrid_shard_size: 8\n"
                 "units: [DecoderLayer, GatedCrossAttention, PerceiverResampler, ViTBlock]\n"
                 "activation_checkpointing: []\n"
                 "activations: {keep: inputs, offload: false, share: 1.0}\n"
                 "mixed_precision: {param: bf16, reduce: fp32, buffer: fp32}\n"
                 "frozen: {residency: sharded, sharding: all, memory_budget: null, dtype: null, "
                 "compute: null}\n"
                 "accumulate: null\ncuda_graphs: false\ncpu_offload: false\nprefetch: 1\n",
                 "t"))
      << write_yaml(values);
}

}  // namespace
}  // namespace floe::config
