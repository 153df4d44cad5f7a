#include <gtest/gtest.h>

#include <filesystem>

#include "floe/config/load.h"
#include "floe/schema/yaml_text.h"
#include "tests/config/expect_error.h"
#include "tests/config/sample_config.h"
#include "tests/io/scratch.h"

namespace floe::config::layers_test {
namespace {

using test::config_error;
using test::expect_part;
using test::SampleConfig;

class LayersTest : public testing::Test {
 public:
  LayersTest() {
    scratch.write("job/a.yaml", "run: {name: demo}\ntrain: {steps: 10, packed: false}\n");
    scratch.write("job/b.yaml", "train: {steps: 20}\n");
    scratch.write("job/strategy/mine.yaml", "sharding: no_shard\nprefetch: 3\n");
    scratch.write("floe/strategy/mine.yaml", "sharding: hybrid\n");
    scratch.write("floe/strategy/hybrid.yaml", "sharding: hybrid\nhybrid_shard_size: 4\n");
    scratch.write("floe/experiment/fast.yaml",
                  "train: {steps: 1, optimizer: {lr: 0.5}}\nstrategy: {prefetch: 7}\n");
    scratch.write("floe/experiment/slow.yaml", "train: {steps: 9000}\n");
    scratch.write("floe/experiment/note.txt", "");
    scratch.write("job/list.yaml", "- 1\n");
    scratch.write("job/empty.yaml", "");
    // ./configs is one of the places that are searched, so the test decides what it is.
    std::filesystem::current_path(scratch.path());
  }
  ~LayersTest() override { std::filesystem::current_path(before); }

 protected:
  // Files by their short names, then overrides.
  Layers layers(const std::vector<std::string>& words) {
    std::vector<std::string> arguments;
    for (const std::string& word : words)
      arguments.push_back(word.find('=') == std::string::npos && word[0] != '~'
                              ? scratch.path("job/" + word)
                              : word);
    return layers_from_arguments(arguments, scratch.path("floe"));
  }
  SampleConfig load_sample(const std::vector<std::string>& words) {
    return load<SampleConfig>(layers(words)).config;
  }

  const std::filesystem::path before = std::filesystem::current_path();
  test::Scratch scratch;
};

TEST_F(LayersTest, AFileMayNameAStrategy) {
  scratch.write("job/named.yaml", "strategy: mine\n");
  scratch.write("job/more.yaml", "strategy: {prefetch: 5}\n");
  scratch.write("job/unknown.yaml", "strategy: mime\n");
  scratch.write("floe/experiment/named.yaml", "strategy: hybrid\n");
  EXPECT_EQ(load_sample({"a.yaml", "named.yaml"}).strategy.prefetch, 3);
  // In its place: what comes later wins, what came before is merged with.
  EXPECT_EQ(load_sample({"a.yaml", "named.yaml", "more.yaml"}).strategy.prefetch, 5);
  EXPECT_EQ(load_sample({"a.yaml", "named.yaml", "more.yaml"}).strategy.sharding,
            shard::Strategy::no_shard);
  EXPECT_EQ(load_sample({"a.yaml", "more.yaml", "named.yaml"}).strategy.prefetch, 3);
  EXPECT_EQ(load_sample({"a.yaml", "named.yaml", "experiment=named"}).strategy.sharding,
            shard::Strategy::hybrid);
  EXPECT_EQ(load_sample({"a.yaml", "named.yaml", "experiment=named"}).strategy.prefetch, 3);
  expect_part(config_error([&] {
                load_sample({"a.yaml", "unknown.yaml"});
              }),
              "unknown.yaml:1:11: there is no strategy 'mime'");
}

TEST_F(LayersTest, DefaultsThenFilesInOrder) {
  const SampleConfig config = load_sample({"a.yaml", "b.yaml"});
  EXPECT_EQ(config.train.steps, 20);
  EXPECT_FALSE(config.train.packed);
  EXPECT_EQ(config.train.optimizer.lr, 1e-4);
  EXPECT_EQ(load_sample({"b.yaml", "a.yaml"}).train.steps, 10);
  EXPECT_EQ(load_sample({"a.yaml", "empty.yaml"}).train.steps, 10);
}

TEST_F(LayersTest, StrategyByNameGoesUnderStrategy) {
  const SampleConfig config = load_sample({"a.yaml", "strategy=hybrid"});
  EXPECT_EQ(config.strategy.sharding, shard::Strategy::hybrid);
  EXPECT_EQ(config.strategy.hybrid_shard_size, 4);
}

TEST_F(LayersTest, BesideTheFirstYamlComesFirst) {
  EXPECT_EQ(load_sample({"a.yaml", "strategy=mine"}).strategy.sharding, shard::Strategy::no_shard);
}

TEST_F(LayersTest, ThenTheFolderConfigsHere) {
  scratch.write("configs/strategy/hybrid.yaml", "hybrid_shard_size: 5\n");
  EXPECT_EQ(load_sample({"a.yaml", "strategy=hybrid"}).strategy.hybrid_shard_size, 5);
}

TEST_F(LayersTest, ExperimentsMergeAtTheRootAndLaterWins) {
  EXPECT_EQ(load_sample({"a.yaml", "experiment=fast"}).train.steps, 1);
  EXPECT_EQ(load_sample({"a.yaml", "experiment=[fast, slow]"}).train.steps, 9000);
  EXPECT_EQ(load_sample({"a.yaml", "experiment=[fast, slow]"}).train.optimizer.lr, 0.5);
  EXPECT_EQ(load_sample({"a.yaml", "experiment=[]"}).train.steps, 10);
}

TEST_F(LayersTest, OrderOfLayersNotOfWords) {
  const SampleConfig config = load_sample({"train.steps=77", "experiment=[fast]", "strategy=mine",
                                           "a.yaml", "strategy.hybrid_shard_size=2"});
  EXPECT_EQ(config.train.steps, 77);                // command line > experiment
  EXPECT_EQ(config.strategy.prefetch, 7);           // experiment > strategy
  EXPECT_EQ(config.strategy.hybrid_shard_size, 2);  // command line > strategy
  EXPECT_EQ(config.run.name, "demo");
}

TEST_F(LayersTest, AStrategyBlockIsAnOrdinaryValue) {
  EXPECT_EQ(load_sample({"a.yaml", "strategy={prefetch: 5}"}).strategy.prefetch, 5);
}

TEST_F(LayersTest, RemovedKeysFallBackToDefaults) {
  EXPECT_EQ(load_sample({"a.yaml", "~train.steps"}).train.steps, 1000);
  EXPECT_TRUE(load_sample({"a.yaml", "~train"}).train.packed);
}

// What can be off is off, whether somebody has set it or it is on by default.
TEST_F(LayersTest, RemovedSwitchesAndOptionalValuesAreOff) {
  EXPECT_FALSE(load_sample({"a.yaml", "~train.packed"}).train.packed);
  EXPECT_TRUE(load_sample({"a.yaml", "~train.packed", "train.packed=true"}).train.packed);
  const Value values = load<SampleConfig>(layers({"a.yaml", "~train.packed"})).values;
  EXPECT_EQ(values.at("train.packed")->origin.text(), "command line '~train.packed'");
  expect_part(config_error([&] {
                load_sample({"a.yaml", "~train.stpes"});
              }),
              "command line '~train.stpes': unknown key 'train.stpes'; did you mean 'steps'?");
  expect_part(config_error([&] {
                load_sample({"a.yaml", "~trian.steps"});
              }),
              "unknown key 'trian'; did you mean 'train'?");
}

TEST_F(LayersTest, EveryValueHasItsOrigin) {
  const Value values =
      load<SampleConfig>(layers({"a.yaml", "strategy=hybrid", "train.optimizer.lr=1e-3"})).values;
  EXPECT_EQ(values.at("run.name")->origin.text(), scratch.path("job/a.yaml") + ":1:13");
  EXPECT_EQ(values.at("run.dir")->origin.text(), "default");
  EXPECT_EQ(values.at("train.optimizer.lr")->origin.text(),
            "command line 'train.optimizer.lr=1e-3'");
  EXPECT_EQ(values.at("strategy.hybrid_shard_size")->origin.text(),
            scratch.path("floe/strategy/hybrid.yaml") + ":2:20");
  EXPECT_EQ(values.at("train.optimizer.betas")->origin.text(), "default");

  const std::string text = print_config(values);
  expect_part(text, "    lr: 1e-3 ");
  expect_part(text, "# command line 'train.optimizer.lr=1e-3'");
  expect_part(text, "  dir: runs                               # default");
}

TEST_F(LayersTest, ThePrintedConfigurationIsTheConfiguration) {
  const auto loaded = load<SampleConfig>(
      layers({"a.yaml", "run.dir=$${HOME}/x", "lora={rank: 4}", "phases=[{name: a, train: [x]}]",
              "strategy.frozen={residency: auto, memory_budget: 40GiB}", "weights={a: 0.5}"}));
  EXPECT_EQ(loaded.config.run.dir, "${HOME}/x");
  scratch.write("again/a.yaml", print_config(loaded.values));
  const auto again = load<SampleConfig>(Layers{{scratch.path("again/a.yaml")}, {}, ""});
  EXPECT_EQ(again.values, loaded.values) << write_yaml(again.values);
}

TEST_F(LayersTest, Errors) {
  const auto problem = [&](const std::vector<std::string>& words) {
    return config_error([&] { load_sample(words); });
  };
  expect_part(
      problem({"a.yaml", "strategy=hybird"}),
      str("command line 'strategy=hybird': there is no strategy 'hybird': looked for hybird.yaml "
          "in ",
          scratch.path("job/strategy"), ", configs/strategy, ", scratch.path("floe/strategy"),
          ", which have hybrid, mine; did you mean 'hybrid'?"));
  expect_part(problem({"a.yaml", "experiment=[fast, fats]"}),
              "which have fast, slow; did you mean 'fast'?");
  expect_part(problem({"a.yaml", "experiment=fast", "experiment=slow"}),
              "experiment is given twice, and both are meant; write experiment=[a, b]");
  expect_part(problem({"a.yaml", "experiment=5"}), "5 is no name; write experiment=[a, b]");
  expect_part(problem({"a.yaml", "experiment=[../x]"}), "'../x' is no name");
  expect_part(problem({"a.yaml", "experiment={a: 1}"}), "a block is no name");
  expect_part(problem({"missing.yaml"}), "missing.yaml': give the path of a YAML file");
  expect_part(problem({"list.yaml"}),
              "list.yaml:1:1: a configuration is a block of 'key: value' lines, not a list");
  expect_part(problem({"b.yaml"}), "run.name is missing; set it: Name of the run");
  EXPECT_EQ(config_error([] {
              compose(Layers{{}, {"strategy=x"}, ""});
            }),
            "command line 'strategy=x': there is no strategy 'x': looked for x.yaml in "
            "configs/strategy, which hold none");
}

}  // namespace
}  // namespace floe::config::layers_test
