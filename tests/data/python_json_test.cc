#include <gtest/gtest.h>

#include <cmath>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/data/python/json.h"
#include "floe/data/python/str.h"

namespace floe::data::python_json_test {
namespace {

using namespace std::string_literals;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// str(json.loads(text)), or "error".
std::string shown(const std::string& text) {
  try {
    const PythonJson document(bytes_of(text));
    return python_str(document.root());
  } catch (const DataError&) {
    return "error";
  }
}

TEST(PythonJson, WhatTheStandardRefusesAndPythonReads) {
  EXPECT_EQ(shown("[NaN, Infinity, -Infinity]"), "[nan, inf, -inf]");
  EXPECT_EQ(shown(R"({"a": 1, "b": 2, "a": 3})"), "{'a': 3, 'b': 2}");
  EXPECT_EQ(shown("123456789012345678901234567890"), "123456789012345678901234567890");
  EXPECT_EQ(shown("1e400"), "inf");
  EXPECT_EQ(shown("-1e400"), "-inf");
  EXPECT_EQ(shown("1e-400"), "0.0");
  EXPECT_EQ(shown("0.0000001e-9999999999999999999"), "0.0");
  EXPECT_EQ(shown("0e99999999999"), "0.0");
  EXPECT_EQ(shown(R"("\ud83d\ude00")"), "\U0001F600");
  EXPECT_EQ(shown(R"(["\ud800"])"), R"(['\ud800'])") << "a lone surrogate is a character";
  EXPECT_EQ(shown("\"\xED\xA0\x80\""), "\xED\xA0\x80");
  EXPECT_EQ(shown("[\"\x7F\"]"), R"(['\x7f'])");
  EXPECT_EQ(shown(std::string(4300, '1')), std::string(4300, '1'));
}

TEST(PythonJson, Encodings) {
  EXPECT_EQ(shown("\xEF\xBB\xBF[1]"), "[1]") << "byte order mark";
  EXPECT_EQ(shown("[\0\"\0\xe9\0\"\0]\0"s), "['\u00e9']") << "UTF-16 without a mark";
  EXPECT_EQ(shown("\xFE\xFF\0[\0001\0]"s), "[1]");
  EXPECT_EQ(shown("\xFF\xFE\0\0[\0\0\0001\0\0\0]\0\0\0"s), "[1]");
  EXPECT_EQ(shown("\0\0\0[\0\0\0]"s), "[]");
  EXPECT_EQ(shown("\0001"s), "1") << "two bytes, big endian";
  EXPECT_EQ(shown("[\0\0"s), "error");
  EXPECT_EQ(shown("\"\xE9\""), "error") << "Latin-1 is not UTF-8";
  EXPECT_EQ(shown("\xEF\xBB\xBF\xEF\xBB\xBF[1]"), "error");
}

TEST(PythonJson, WhatBothRefuse) {
  for (const char* wrong : {"",           " ",
                            "nul",        "tru",
                            "{",          "[1,]",
                            "{\"a\":1,}", "{a:1}",
                            "{'a':1}",    "[1 2]",
                            "01",         "1.",
                            ".5",         "-",
                            "+1",         "1e",
                            "\"\\x\"",    "\"\\u12g4\"",
                            "\"\n\"",     "\"a",
                            "[1]]",       "1 2",
                            "{\"a\" 1}",  "NaN1",
                            "-NaN",       "\"\\ud800\\u12\"",
                            "{1:2}",      "[",
                            "]",          "//c\n1",
                            "\x0c[1]"})
    EXPECT_EQ(shown(wrong), "error") << wrong;
  EXPECT_EQ(shown(std::string(4301, '1')), "error");
  EXPECT_EQ(shown(std::string(2000, '[') + std::string(2000, ']')), "error");
  EXPECT_NE(shown(std::string(900, '[') + std::string(900, ']')), "error");
}

TEST(PythonJson, StringsStayInPlace) {
  const std::string text = R"({"image_base64": "QUJD", "other": "a\nb"})";
  const PythonJson document(bytes_of(text));
  const Json* plain = document.root().find("image_base64");
  ASSERT_TRUE(plain);
  EXPECT_GE(plain->text.data(), text.data());
  EXPECT_LT(plain->text.data(), text.data() + text.size());
  EXPECT_EQ(document.root().find("other")->text, "a\nb");
  EXPECT_FALSE(document.root().find("none"));
}

TEST(PythonStr, AsReprWritesThem) {
  EXPECT_EQ(shown("[null, true, false, 1, -0, 1.5, -0.0]"), "[None, True, False, 1, 0, 1.5, -0.0]");
  EXPECT_EQ(shown("[1e15, 1e16, 123456789012345678.0, 0.0001, 0.00001, 1e22, 100.0]"),
            "[1000000000000000.0, 1e+16, 1.2345678901234568e+17, 0.0001, 1e-05, 1e+22, 100.0]");
  EXPECT_EQ(shown(R"(["it's", "say \"x\"", "'\"", "\\", "\u00a0\u200b\n\t\r\u0001"])"),
            R"(["it's", 'say "x"', '\'"', '\\', '\xa0\u200b\n\t\r\x01'])");
  EXPECT_EQ(shown(R"({"k": [{}, []]})"), "{'k': [{}, []]}");
}

TEST(Unicode, StripTakesWhatPythonCallsSpace) {
  EXPECT_EQ(strip(" \t\u00a0\u3000\u2028x y\u1680\x1f\n"), "x y");
  EXPECT_EQ(strip("\u200bx\ufeff"), "\u200bx\ufeff") << "no white space to Python";
  EXPECT_EQ(strip("\u2003\u2003"), "");
  EXPECT_EQ(strip(""), "");
}

TEST(Unicode, ReplaceGoesOverTheTextOnce) {
  EXPECT_EQ(replace("  <image>", " <image>", "<image>"), " <image>");
  EXPECT_EQ(replace("aaa", "aa", "b"), "ba");
  EXPECT_EQ(replace("xaxa", "a", "", 1), "xxa");
}

TEST(Unicode, SurrogatesAndBrokenSequences) {
  EXPECT_TRUE(is_utf8_with_surrogates("a\xED\xA0\x80\xED\xBF\xBFz"));
  EXPECT_FALSE(is_utf8_with_surrogates("\xC3\xED\xA0\x80"));
  EXPECT_FALSE(is_utf8_with_surrogates("\xED\xA0"));
  EXPECT_FALSE(is_utf8("\xED\xA0\x80"));
}

TEST(Unicode, IntegersOfBytes) {
  for (const char* good : {"1", " -12\n", "+007", "1_000", "\v9\f"})
    EXPECT_TRUE(is_python_int(good));
  for (const char* wrong : {"", " ", "-", "1.0", "1__0", "_1", "1_", "0x1", "1 2", "\u0661"})
    EXPECT_FALSE(is_python_int(wrong)) << wrong;
  EXPECT_FALSE(is_python_int(std::string(4301, '1')));
}

}  // namespace
}  // namespace floe::data::python_json_test
