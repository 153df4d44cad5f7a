#include <gtest/gtest.h>

#include "floe/config/load.h"
#include "floe/config/yaml.h"
#include "floe/schema/yaml_text.h"
#include "tests/config/expect_error.h"
#include "tests/config/sample_config.h"

namespace floe::config::references_test {
namespace {

using test::config_error;
using test::expect_part;

std::optional<std::string> fake_environment(const std::string& name) {
  if (name == "HOME") return "/home/ann";
  if (name == "GPUS") return "8";
  if (name == "EMPTY") return "";
  return std::nullopt;
}

Value resolved(const std::string& yaml) {
  Value root = parse_yaml(yaml, "x.yaml");
  resolve_references(root, fake_environment);
  return root;
}

void expect_same(const std::string& yaml, const std::string& expected) {
  const Value value = resolved(yaml);
  EXPECT_EQ(value, parse_yaml(expected, "t")) << write_yaml(value);
}

TEST(References, ToOtherValues) {
  expect_same("run: {dir: runs}\nlog: '${run.dir}/log'", "run: {dir: runs}\nlog: runs/log");
  expect_same("a: '${b}-${b}'\nb: '${c}'\nc: x", "a: x-x\nb: x\nc: x");
  expect_same("a: {b: '${a.c}', c: 1}", "a: {b: 1, c: 1}");
}

TEST(References, WholeValuesKeepTheirType) {
  expect_same("a: 5\nb: ${a}", "a: 5\nb: 5");
  expect_same("a: [1, {x: 2}]\nb: ${a}", "a: [1, {x: 2}]\nb: [1, {x: 2}]");
  expect_same("a: null\nb: ${a}", "a: null\nb: null");
  expect_same("a: ${b}\nb: {x: 1}\nc: ${a.x}", "a: {x: 1}\nb: {x: 1}\nc: 1");
  expect_same("a: 007\nb: 'run-${a}'", "a: 7\nb: run-007");
}

TEST(References, Environment) {
  expect_same("a: '${env:HOME}/x'\nb: ${env:GPUS}\nc: ${env:NONE:4}\nd: 'x${env:NONE:}'",
              "a: /home/ann/x\nb: 8\nc: 4\nd: x");
  expect_same("a: ${env:NONE:http://x}\nb: ${env:EMPTY}", "a: 'http://x'\nb: ''");
}

TEST(References, Escaped) {
  expect_same("a: 'echo $${HOME} $HOME $(x)'", "a: 'echo ${HOME} $HOME $(x)'");
  expect_same("a: $${b}", "a: '${b}'");
  Value value = parse_yaml("a: 'x ${y} ${z}'", "x");
  const Value before = value;
  escape_references(value);
  resolve_references(value, fake_environment);
  EXPECT_EQ(value, before);
}

TEST(References, BringTheOriginOfThePlaceThatRefers) {
  EXPECT_EQ(resolved("a: 5\nb: ${a}").at("b")->origin.text(), "x.yaml:2:4");
}

TEST(References, SeeDefaults) {
  const auto loaded = load<test::SampleConfig>(
      parse_yaml("run: {name: '${run.dir}-${train.steps}', seed: '${env:GPUS}'}", "x.yaml"), {},
      fake_environment);
  EXPECT_EQ(loaded.config.run.name, "runs-1000");
  EXPECT_EQ(loaded.config.run.seed, 8);
}

TEST(References, Errors) {
  const auto problem = [](const std::string& yaml) {
    return config_error([&] { resolved(yaml); });
  };
  expect_part(problem("a: ${a}"), "x.yaml:1:4: '${a}' refers to itself in a circle");
  expect_part(problem("a: ${b}\nb: 'x${c}'\nc: ${a}"), "refers to itself in a circle");
  expect_part(problem("a: {b: '${a}'}"), "refers to itself in a circle");
  expect_part(problem("a: ${nowhere.b}"),
              "x.yaml:1:4: ${nowhere.b} refers to nowhere.b, which is not set");
  expect_part(problem("a: '${}'"), "refers to nothing, which is not set");
  expect_part(problem("b: 5\na: ${b.c}"), "refers to b.c, which is not set");
  expect_part(problem("a: ${env:NONE}"),
              "the environment variable NONE is not set; set it, or write ${env:NONE:fallback}");
  expect_part(problem("a: 'x${b'\nb: 1"), "has a '${' without '}'");
  expect_part(problem("a: 'x${b}'\nb: [1]"), "${b} is a list, which cannot stand inside a text");
  expect_part(problem("a: 'x${b}'\nb: null"), "${b} is null, which cannot stand inside a text");
}

TEST(References, CannotExplode) {
  std::string text = "a0: xxxxxxxxxxxxxxxx\n", lists = "a0: [x, x]\n", deep = "a0: [x]\n",
              chain = "a0: x\n";
  for (int i = 1; i < 150; ++i) {
    text += str("a", i, ": '${a", i - 1, "}${a", i - 1, "}'\n");
    lists += str("a", i, ": ['${a", i - 1, "}', '${a", i - 1, "}']\n");
    deep += str("a", i, ": ['${a", i - 1, "}']\n");
    chain = str("a", i, ": ${a", i - 1, "}\n") + chain;  // each is met before what it refers to
  }
  expect_part(config_error([&] { resolved(text); }), "the text grows too long");
  expect_part(config_error([&] { resolved(lists); }),
              "the references make the configuration too large");
  expect_part(config_error([&] { resolved(deep); }),
              "the references make the configuration too large");
  expect_part(config_error([&] { resolved(chain); }), "the chain of references is too long");
}

}  // namespace
}  // namespace floe::config::references_test
