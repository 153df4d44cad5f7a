// Values and merging.
#include <gtest/gtest.h>

#include <cmath>

#include "floe/config/yaml.h"

namespace floe::config::config_test {
namespace {

TEST(Scalar, Yaml12Core) {
  EXPECT_TRUE(Value::plain("").is_null());
  EXPECT_TRUE(Value::plain("~").is_null());
  EXPECT_TRUE(Value::plain("null").is_null());
  EXPECT_EQ(Value::plain("true"), Value(true));
  EXPECT_EQ(Value::plain("False"), Value(false));
  for (const char* word :
       {"yes", "no",  "on",  "off",   "y",    "1_000", "1e",    "e5",    ".",   "-",   "+",
        "0x",  "0o9", "+-5", "1.2.3", "0x-1", "-0x1",  "1e+-5", "12:30", "inf", "nan", ".e5"})
    EXPECT_EQ(Value::plain(word), Value(std::string(word))) << word;
  EXPECT_EQ(Value::plain("12"), Value(std::int64_t{12}));
  EXPECT_EQ(Value::plain("+12"), Value(std::int64_t{12}));
  EXPECT_EQ(Value::plain("-012"), Value(std::int64_t{-12}));
  EXPECT_EQ(Value::plain("0x1F"), Value(std::int64_t{31}));
  EXPECT_EQ(Value::plain("0o17"), Value(std::int64_t{15}));
  EXPECT_EQ(Value::plain("-9223372036854775808"), Value(std::int64_t{INT64_MIN}));
  EXPECT_EQ(Value::plain("1e-4"), Value(1e-4));
  EXPECT_EQ(Value::plain("1E+4"), Value(1e4));
  EXPECT_EQ(Value::plain(".5"), Value(0.5));
  EXPECT_EQ(Value::plain("5."), Value(5.0));
  EXPECT_EQ(Value::plain("-1.5e3"), Value(-1500.0));
  EXPECT_EQ(Value::plain("9223372036854775808"), Value(9223372036854775808.0));
  EXPECT_EQ(Value::plain("1e999"), Value(INFINITY));
  EXPECT_EQ(Value::plain("1e-999"), Value(0.0));
  EXPECT_EQ(Value::plain("-.inf"), Value(-INFINITY));
  EXPECT_EQ(Value::plain(".nan"), Value(std::nan("")));
}

TEST(Scalar, KeepsItsSpelling) {
  EXPECT_EQ(Value::plain("007").scalar_text(), "007");
  EXPECT_EQ(Value::plain("1e-4").scalar_text(), "1e-4");
  EXPECT_EQ(Value(0.5).scalar_text(), "0.5");
  EXPECT_EQ(Value(5.0).scalar_text(), "5.0");  // must not read back as an integer
}

TEST(Value, FindsByPath) {
  const Value root = parse_yaml("a: {b: {c: 5}}", "t");
  EXPECT_EQ(*root.at("a.b.c"), Value(std::int64_t{5}));
  EXPECT_EQ(root.at("a.x"), nullptr);
  EXPECT_EQ(root.at("a.b.c.d"), nullptr);
}

TEST(Merge, LaterWinsKeyByKey) {
  Value base = parse_yaml("a: {x: 1, y: 2}\nl: [1, 2]\nn: {z: 1}", "base");
  merge(base, parse_yaml("a: {y: 3, z: 4}\nl: [9]\nn: null", "over"));
  EXPECT_EQ(base, parse_yaml("a: {x: 1, y: 3, z: 4}\nl: [9]\nn: null", "t"));
  EXPECT_EQ(base.at("a.x")->origin.text(), "base:1:8");
  EXPECT_EQ(base.at("a.y")->origin.text(), "over:1:8");
  EXPECT_EQ(base.at("l")->origin.text(), "over:2:1");
}

TEST(Merge, ABlockReplacesAScalar) {
  Value base = parse_yaml("a: 1", "base");
  merge(base, parse_yaml("a: {b: 2}", "over"));
  EXPECT_EQ(base, parse_yaml("a: {b: 2}", "t"));
}

TEST(Origin, InWords) {
  EXPECT_EQ(Origin::of_default().text(), "default");
  EXPECT_EQ(Origin::of_argument("a=1").text(), "command line 'a=1'");
  EXPECT_EQ(Origin{}.text(), "");
}

}  // namespace
}  // namespace floe::config::config_test
