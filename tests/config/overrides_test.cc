#include <gtest/gtest.h>

#include "floe/config/load.h"
#include "floe/config/yaml.h"
#include "floe/schema/yaml_text.h"
#include "tests/config/expect_error.h"

namespace floe::config::overrides_test {
namespace {

using test::config_error;
using test::expect_part;

Value changed(const std::string& yaml, const std::vector<std::string>& arguments) {
  Value root = parse_yaml(yaml, "x.yaml");
  for (const std::string& argument : arguments) apply(parse_override(argument), root);
  return root;
}

void expect_same(const Value& value, const std::string& yaml) {
  EXPECT_EQ(value, parse_yaml(yaml, "t")) << write_yaml(value);
}

TEST(Overrides, Set) {
  expect_same(changed("a: {b: 1, c: 2}", {"a.b=5"}), "a: {b: 5, c: 2}");
  expect_same(changed("a: {b: 1}", {"x.y.z=1e-4"}), "a: {b: 1}\nx: {y: {z: 1e-4}}");
  expect_same(changed("a: 1", {"a=[1, 'two', {three: 3}]"}), "a: [1, 'two', {three: 3}]");
  expect_same(changed("a: 1", {"a=null"}), "a: null");
  expect_same(changed("a: 1", {"a=b=c"}), "a: b=c");
  expect_same(changed("a: null", {"a.b=1"}), "a: {b: 1}");
  expect_same(changed("a: 1", {"a=2", "a=3"}), "a: 3");
  expect_same(changed("a: 1", {"a='5'"}), "a: '5'");
}

TEST(Overrides, SetReplacesAndAddMerges) {
  expect_same(changed("a: {b: 1, c: 2}", {"a={b: 5}"}), "a: {b: 5}");
  expect_same(changed("a: {b: 1, c: 2}", {"++a={b: 5, d: 6}"}), "a: {b: 5, c: 2, d: 6}");
  expect_same(changed("a: 1", {"++n.m=5"}), "a: 1\nn: {m: 5}");
  expect_same(changed("a: [1]", {"++a=[2]"}), "a: [2]");
}

TEST(Overrides, Remove) {
  expect_same(changed("a: {b: 1, c: 2}", {"~a.b"}), "a: {c: 2}");
  expect_same(changed("a: {b: 1}\nd: 1", {"~a"}), "d: 1");
  expect_same(changed("a: 1", {"b=2", "~b"}), "a: 1");
}

TEST(Overrides, KeepTheirOrigin) {
  const Value root = changed("a: {b: 1}", {"a.b=5", "n=[1, 2]"});
  EXPECT_EQ(root.at("a.b")->origin.text(), "command line 'a.b=5'");
  EXPECT_EQ(root.at("n")->as<List>()->at(1).origin.text(), "command line 'n=[1, 2]'");
}

TEST(Overrides, AreToldFromFiles) {
  for (const char* text : {"a=1", "++a=1", "~a", "a.b=", "strategy=hybrid", "a=b/c"})
    EXPECT_TRUE(is_override(text)) << text;
  for (const char* text : {"a.yaml", "dir/a.yaml", "-", "", "runs/lr=1e-4/config.yaml", "~/a.yaml"})
    EXPECT_FALSE(is_override(text)) << text;
}

struct Wrong {
  const char *argument, *expected;
};
void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.argument; }

class WrongOverride : public testing::TestWithParam<Wrong> {};

TEST_P(WrongOverride, SaysWhatToWrite) {
  const std::string message =
      config_error([&] { changed("train: {steps: 5, clip: {norm: 1}}", {GetParam().argument}); });
  expect_part(message, GetParam().expected);
  expect_part(message, str("command line '", GetParam().argument, "'"));
  EXPECT_EQ(message.find('\n'), message.npos);
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongOverride,
    testing::ValuesIn<Wrong>({
        {"", "write key=value, ++key=value or ~key"},
        {"steps", "write key=value, ++key=value or ~key"},
        {"=5", "'' is not a key"},
        {"++=5", "'' is not a key"},
        {"+=5", "'+' is not a key"},
        {"+train.steps=5",
         "'+train.steps' is not a key; write words joined by dots, such as train.optimizer.lr"},
        {"++train.steps", "write key=value, ++key=value or ~key"},
        {"train..steps=5", "'train..steps' is not a key"},
        {".train=5", "'.train' is not a key"},
        {"train.=5", "'train.' is not a key"},
        {"train steps=5", "'train steps' is not a key"},
        {"train[0]=5", "'train[0]' is not a key"},
        {"~", "'' is not a key"},
        {"~train.steps=5", "'~' removes a key and takes no value; write ~train.steps"},
        {"~train.steps.x",
         "train.steps is 5 (x.yaml:1:16), which has no 'x'; set train.steps itself"},
        {"train.steps.x=1",
         "train.steps is 5 (x.yaml:1:16), which has no 'x'; set train.steps itself"},
        {"train.steps=[1", "is a ']' or '}' missing?"},
        {"train.steps={a: 1, a: 2}", "the key 'a' is here a second time"},
        {"train.clip.norm=", "there is no value behind '='; write train.clip.norm=null where none"},
        {"train.steps=*x", "not valid YAML"},
        {"files=*.tar", "a text that begins with '*' stands in quotes, as in \"*x\""},
        {"files=@list", "a text that begins with '@' stands in quotes"},
        {"files={0..3}.tar", "a text that begins with '{' stands in quotes, as in \"{0..3}.tar\""},
        {"a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a=1", "is not a key"},
    }));

}  // namespace
}  // namespace floe::config::overrides_test
