#include "floe/config/yaml.h"

#include <gtest/gtest.h>

#include "floe/schema/yaml_text.h"
#include "tests/config/expect_error.h"
#include "tests/io/scratch.h"

namespace floe::config::yaml_test {
namespace {

using test::config_error;
using test::expect_part;

TEST(Yaml, OriginsAreLineAndColumn) {
  const Value root = parse_yaml("train:\n  steps: 5\n  list:\n    - a\n    - b\n", "x.yaml");
  EXPECT_EQ(root.at("train")->origin.text(), "x.yaml:1:1");  // a block is where its key is
  EXPECT_EQ(root.at("train.steps")->origin.text(), "x.yaml:2:10");
  EXPECT_EQ(root.at("train.list")->origin.text(), "x.yaml:3:3");
  EXPECT_EQ(root.at("train.list")->as<List>()->at(1).origin.text(), "x.yaml:5:7");
}

TEST(Yaml, QuotesMakeStrings) {
  const Value root = parse_yaml("a: '5'\nb: \"true\"\nc: !!str 5\nd: |\n  5\n", "x");
  for (const char* key : {"a", "b", "c", "d"}) EXPECT_TRUE(root.at(key)->as<std::string>()) << key;
}

TEST(Yaml, EmptyTextsAreNull) {
  for (const char* text : {"", "\n", "# only a comment\n", "---\n", "~"})
    EXPECT_TRUE(parse_yaml(text, "x").is_null());
}

TEST(Yaml, AliasesAreCopies) {
  const Value root = parse_yaml("a: &x {b: 1}\nc: *x\nd: [*x, *x]\ne: &k word\n*k : 5\n", "x");
  EXPECT_EQ(root, parse_yaml("a: {b: 1}\nc: {b: 1}\nd: [{b: 1}, {b: 1}]\ne: word\nword: 5\n", "y"));
}

TEST(Yaml, Errors) {
  const auto problem = [](const std::string& text) {
    return config_error([&] { parse_yaml(text, "x.yaml"); });
  };
  expect_part(problem("a: 1\nb: 2\na: 3\n"),
              "x.yaml:3:1: the key 'a' is here a second time (first value at x.yaml:1:4)");
  expect_part(problem("{a: 1, a: 2}"), "the key 'a' is here a second time");
  expect_part(problem("a: [1, 2\n"), "not valid YAML");
  expect_part(problem("a: b: c\n"), "x.yaml:1:5: not valid YAML");
  expect_part(problem("\ta: 1\n"), "x.yaml:1");
  expect_part(problem("a: *nowhere\n"), "x.yaml:1:4: not valid YAML");
  expect_part(problem("a: *.tar\n"), "a text that begins with '*' stands in quotes");
  expect_part(problem("a: {0..3}.tar\n"), "a text that begins with '{' stands in quotes");
  expect_part(problem("a: &x [*x]\n"), "this alias stands inside what it refers to");
  expect_part(problem("[a]: 1\n"), "a key must be a plain word");
  expect_part(problem("{a: 1}: 1\n"), "a key must be a plain word");
  expect_part(problem("~: 1\n"), "a key must be a plain word");
  expect_part(problem(std::string(201, 'k') + ": 1\n"),
              "a key must be a plain word of at most 200 bytes");
  expect_part(problem("a: !!binary aGk=\n"), "the tag 'tag:yaml.org,2002:binary' is not supported");
  expect_part(problem("a: !thing {}\n"), "the tag '!thing' is not supported");
  expect_part(problem("a: 1\n---\nb: 2\n"), "more than one YAML document");
  expect_part(problem(std::string(100, '[') + std::string(100, ']')),
              "nested deeper than 48 levels");
  expect_part(problem(std::string(5000, '[')), "is a ']' or '}' missing?");
  std::string dashes;
  for (int i = 0; i < 600; ++i) dashes += "- ";
  expect_part(problem(dashes + "x"), "nested deeper than 48 levels");
  expect_part(problem(std::string(2 << 20, ' ')), "a configuration may have at most 1048576 bytes");
}

TEST(Yaml, BillionLaughsAreRefused) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    text += str("a", i, ": &a", i, " [");
    for (int j = 0; j < 10; ++j) text += str(j ? ", " : "", "*a", i - 1);
    text += "]\n";
  }
  expect_part(config_error([&] { parse_yaml(text, "x"); }),
              "more than 20000 values (aliases count in full)");
}

TEST(Yaml, AliasesCannotNestWithoutEnd) {
  std::string text = "a0: &a0 [x]\n";
  for (int i = 1; i < 60; ++i) text += str("a", i, ": &a", i, " [*a", i - 1, "]\n");
  expect_part(config_error([&] { parse_yaml(text, "x"); }), "nested deeper than 48 levels");
}

TEST(Yaml, WritesWhatItReads) {
  for (const char* text :
       {"a: 1\nb: [1, 2.5, x, 'y z', null, true]\nc: {d: {}, e: [], f: ''}\n", "[]", "{}", "5",
        "'5'", "null", "a: \"q\\\"uo\\\\te\\n\\t\\x01\"\n", "l: [{a: 1, b: [2]}, [3, [4]]]\n",
        "'null': 1\n'a b': 2\n'': 3\n", "a: 'true'\nb: '1e5'\nc: '~'\nd: '*x'\ne: '#x'\nf: '- x'\n",
        "a: 1e-4\nb: .inf\nc: -.inf\nd: .nan\ne: 007\n"}) {
    const Value value = parse_yaml(text, "x");
    const std::string written = write_yaml(value);
    EXPECT_EQ(parse_yaml(written, "y"), value) << written;
    EXPECT_EQ(write_yaml(parse_yaml(written, "y")), written);
    EXPECT_EQ(parse_yaml(write_yaml(value, Comments::origins), "y"), value);
  }
}

TEST(Yaml, ReadsFiles) {
  const test::Scratch scratch;
  EXPECT_EQ(read_yaml(scratch.write("a.yaml", "a: 1")), parse_yaml("a: 1", "x"));
  EXPECT_TRUE(read_yaml(scratch.write("empty.yaml", "")).is_null());
  expect_part(config_error([&] { read_yaml(scratch.path("missing.yaml")); }),
              "cannot read the configuration");
  expect_part(config_error([&] { read_yaml(scratch.path()); }), "cannot read the configuration");
}

}  // namespace
}  // namespace floe::config::yaml_test
