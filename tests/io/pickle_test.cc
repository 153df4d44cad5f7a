// Pickles as data: what is read, what is refused, what is written.
#include "floe/io/torch_file/pickle.h"

#include <gtest/gtest.h>

#include <limits>

#include "floe/core/error.h"

namespace floe::pickle::pickle_test {
namespace {

using namespace std::string_literals;

Value read(const std::string& opcodes) { return pickle::read(opcodes, "test.pkl"); }

std::string problem(const std::string& opcodes) {
  try {
    read(opcodes);
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "it was accepted";
}

TEST(PickleReader, Scalars) {
  EXPECT_TRUE(read("\x80\x02N.").is_none());
  EXPECT_TRUE(read("\x80\x02\x88.").boolean());
  EXPECT_FALSE(read("\x80\x02\x89.").boolean());
  EXPECT_EQ(read("\x80\x02K\xff.").integer(), 255);
  EXPECT_EQ(read("\x80\x02M\xff\xff.").integer(), 65535);
  EXPECT_EQ(read("\x80\x02J\xff\xff\xff\xff.").integer(), -1);
  EXPECT_EQ(read("\x80\x02G?\xf8\0\0\0\0\0\0."s).real(), 1.5);
  EXPECT_EQ(read("\x80\x02X\2\0\0\0\xc3\xa9."s).text(), "\xc3\xa9");
  EXPECT_EQ(read("\x80\x04\x8e\2\0\0\0\0\0\0\0\0\xff."s).bytes(), "\0\xff"s);
}

TEST(PickleReader, IntegersOfAnyLength) {
  EXPECT_EQ(read("\x80\x02\x8a\0."s).integer(), 0);
  EXPECT_EQ(read("\x80\x02\x8a\x02\0\xff."s).integer(), -256);
  EXPECT_EQ(read("\x80\x02\x8a\x02\xff\0."s).integer(), 255);
  const std::string largest = "\xff\xff\xff\xff\xff\xff\xff\x7f", smallest = "\0\0\0\0\0\0\0\x80"s;
  EXPECT_EQ(read("\x80\x02\x8a\x08" + largest + ".").integer(),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(read("\x80\x02\x8a\x08" + smallest + ".").integer(),
            std::numeric_limits<std::int64_t>::min());
  // A needless sign byte does not make it big; a needed one does.
  EXPECT_EQ(read("\x80\x02\x8a\x09" + largest + "\0."s).integer(),
            std::numeric_limits<std::int64_t>::max());
  const Value big = read("\x80\x02\x8a\x09" + smallest + "\0."s);
  EXPECT_EQ(big.kind(), Kind::big_integer);
  EXPECT_EQ(big.bytes(), smallest + "\0"s);
  EXPECT_THROW(big.integer(), DataError);
}

TEST(PickleReader, ACallIsData) {
  const Value value = read(
      "\x80\x02"
      "cos\nsystem\nX\4\0\0\0echo\x85R."s);
  const Object& object = value.object();
  EXPECT_TRUE(object.calls("os", "system"));
  EXPECT_EQ(object.how, Object::How::reduce);
  EXPECT_EQ(object.args.items().at(0).text(), "echo");
  EXPECT_FALSE(object.has_state);
  EXPECT_EQ(shown(value), "os.system(\"echo\",)");
}

TEST(PickleReader, ObjectsWithStateItemsAndEntries) {
  // m.C.__new__(), state {"a": 7}
  const Value built = read(
      "\x80\x02"
      "cm\nC\n)\x81}X\1\0\0\0aK\7sb."s);
  EXPECT_EQ(built.object().how, Object::How::new_object);
  EXPECT_EQ(built.attribute("a")->integer(), 7);
  EXPECT_EQ(built.attribute("b"), nullptr);
  EXPECT_EQ(built.find("a"), nullptr);
  // collections.OrderedDict(), then ["a"] = 1, ["a"] = 2
  const Value ordered = read(
      "\x80\x02"
      "ccollections\nOrderedDict\n)R(X\1\0\0\0aK\1X\1\0\0\0aK\2u."s);
  EXPECT_TRUE(ordered.has_entries());
  EXPECT_EQ(ordered.find("a")->integer(), 2);
  EXPECT_EQ(ordered.entries().size(), 2u);
  const Value deque = read(
      "\x80\x02"
      "ccollections\ndeque\n)R(K\1K\2e."s);
  EXPECT_EQ(deque.items().size(), 2u);
  EXPECT_FALSE(deque.has_entries());
  // Keyword arguments
  const Value keywords = read("\x80\x04\x8c\1m\x8c\1C\x93)}\x8c\1kK\1s\x92."s);
  EXPECT_EQ(keywords.object().kwargs.find("k")->integer(), 1);
}

TEST(PickleReader, TheMemoSharesContent) {
  const Value pair = read("\x80\x02]q\0h\0\x86."s);
  EXPECT_EQ(pair.items()[0].identity(), pair.items()[1].identity());
}

// Twice the one before, a hundred times: 2^100 lists as a tree, a hundred in memory.
TEST(PickleReader, AMemoBombStaysSmall) {
  std::string bomb = "\x80\x02]";
  for (char i = 0; i < 100; ++i) bomb += "q"s + i + "0(h"s + i + "h"s + i + "l";
  const Value value = read(bomb + ".");
  EXPECT_LT(shown(value).size(), 300u);
  EXPECT_LT(write(value).size(), 1500u);
}

struct Case {
  std::string what, opcodes, expected;
};

const std::vector<Case> kCases{
    {"empty", "", "it has no end"},
    {"no_end", "\x80\x02N", "it has no end"},
    {"nothing", "\x80\x02.", "ends with 0 values on the stack"},
    {"two", "\x80\x02NN.", "ends with 2 values on the stack"},
    {"open_mark", "\x80\x02N(.", "ends with 1 values"},
    {"protocol", "\x80\x06N.", "has protocol 6; floe reads 2 to 5"},
    {"text_opcode", "I1\n.", "uses an opcode that floe does not read (opcode 0x49 at byte 0 of 4)"},
    {"extension", "\x80\x02\x82\1.", "uses an opcode that floe does not read"},
    {"out_of_band", "\x80\x05\x97.", "uses an opcode that floe does not read"},
    {"text_cut", "\x80\x02X\5\0\0\0ab."s, "needs 5 more bytes, but 3 are left"},
    {"text_2_63", "\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "needs 18446744073709551615"},
    {"number_cut", "\x80\x02J\0\0"s, "needs 4 more bytes, but 2 are left"},
    {"not_utf8", "\x80\x02X\1\0\0\0\xff."s, "has a text that is not UTF-8"},
    {"surrogate", "\x80\x02X\3\0\0\0\xed\xa0\x80."s, "has a text that is not UTF-8"},
    {"name_cut",
     "\x80\x02"
     "cos",
     "is cut off inside a name"},
    {"name_empty",
     "\x80\x02"
     "c\nx\n.",
     "imports a name that is none"},
    {"name_control",
     "\x80\x02"
     "ca\x1b[2J\nx\n.",
     "imports a name that is none"},
    {"name_number", "\x80\x04K\1K\2\x93.", "imports a name that is no text"},
    {"pop_empty",
     "\x80\x02"
     "0N.",
     "takes a value from an empty stack"},
    {"pop_below_mark", "\x80\x02N(R.", "takes a value from an empty stack"},
    {"top_empty", "\x80\x02q\0."s, "needs a value on an empty stack"},
    {"no_mark", "\x80\x02t.", "has no mark"},
    {"tuple_short", "\x80\x02N\x86.", "makes a tuple of 2 from fewer values"},
    {"memo_unknown", "\x80\x02h\7.", "takes memo 7, which was never put"},
    {"call_no_tuple",
     "\x80\x02"
     "cm\nC\nNR.",
     "calls with None instead of a tuple"},
    {"keywords_no_dict", "\x80\x04NN)N\x92.", "calls with None as keyword arguments"},
    {"state_of_list", "\x80\x02]}b.", "gives a state to a list"},
    {"two_states",
     "\x80\x02"
     "cm\nC\n)\x81}b}b.",
     "gives an object two states"},
    {"append_to_dict", "\x80\x02}Na.", "appends to a dict"},
    {"append_to_tuple", "\x80\x02)(Ne.", "appends to a tuple"},
    {"set_item_of_list", "\x80\x02]NNs.", "sets items of a list"},
    {"key_alone", "\x80\x02}(NNNu.", "has a key without a value"},
    {"add_to_list", "\x80\x04](N\x90.", "adds to a list as to a set"},
    {"cycle", "\x80\x02]q\0h\0a."s, "holds a value that contains itself"},
    {"long_cycle",
     "\x80\x02]q\0]q\1h\0\x85"
     "aa."s,
     "holds a value that contains itself"},
    {"deep_tuples", "\x80\x02N"s + std::string(600, '\x85') + ".", "nested too deeply"},
    // Deep enough to exhaust the stack of a reader or destructor that recurses.
    {"very_deep_lists", "\x80\x02"s + std::string(300'000, ']') + std::string(299'999, 'a') + ".",
     "nested too deeply"},
    {"very_deep_and_broken", "\x80\x02N"s + std::string(300'000, '\x85') + "\xff",
     "uses an opcode"},
};

class Defect : public testing::TestWithParam<Case> {};

TEST_P(Defect, IsRefusedInWords) {
  const std::string text = problem(GetParam().opcodes);
  EXPECT_NE(text.find(GetParam().expected), text.npos) << text;
  EXPECT_NE(text.find("'test.pkl': the pickle "), text.npos) << text;
}

INSTANTIATE_TEST_SUITE_P(Pickle, Defect, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.what; });

TEST(PickleReader, WhatIsThrownAwayMayBeDeep) {
  EXPECT_TRUE(read("\x80\x02N"s + std::string(300'000, '\x85') + "0N.").is_none());
}

TEST(PickleValue, WrongKindsAreNamed) {
  try {
    list({1, "two"}).text();
    FAIL();
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "a pickle has a list where a text is expected: [1, \"two\"]");
  }
  EXPECT_EQ(Value(3).real(), 3.0);
  EXPECT_THROW(Value(3.0).integer(), DataError);
  EXPECT_THROW(Value(true).integer(), DataError);
  EXPECT_THROW(Value().items(), DataError);
  EXPECT_THROW(list({}).entries(), DataError);
}

TEST(PickleWriter, EqualTextsAndSharedValuesAreWrittenOnce) {
  const Value shared = list({"text"});
  const std::string bytes = write(tuple({shared, shared, "text"}));
  EXPECT_EQ(bytes, "\x80\x02]q\0(X\4\0\0\0textq\1eh\0h\1\x87."s);
  const Value back = read(bytes);
  EXPECT_EQ(back.items()[0].identity(), back.items()[1].identity());
}

TEST(PickleWriter, ComesBackTheSame) {
  const Value value = dict({
      {"none", Value()},
      {"flags", tuple({true, false})},
      {"numbers", list({0, 255, 256, -1, std::int64_t{1} << 40, -(std::int64_t{1} << 40),
                        std::numeric_limits<std::int64_t>::min(), 0.1,
                        std::numeric_limits<double>::infinity()})},
      {7, "a key that is a number"},
      {tuple({1, 2}), tuple({})},
      {"state", new_object(global("m", "C"), {}, dict({{"field", 1}}))},
      {"ordered", ordered_dict({{"a", 1}})},
      {"id", persistent(tuple({"storage", global("torch", "FloatStorage")}))},
  });
  const std::string bytes = write(value);
  EXPECT_EQ(write(read(bytes)), bytes);
  EXPECT_EQ(shown(read(bytes)), shown(value));
  EXPECT_EQ(read(bytes).find("numbers")->items()[6].integer(),
            std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(read(bytes).find("state")->attribute("field")->integer(), 1);
}

TEST(PickleWriter, RefusesWhatCannotBeRead) {
  EXPECT_THROW(write("\xff"), Error);
  EXPECT_THROW(write(global("a\nb", "c")), Error);
  Value deep;
  for (int i = 0; i < kMostDepth + 1; ++i) deep = tuple({deep});
  EXPECT_THROW(write(deep), Error);
}

}  // namespace
}  // namespace floe::pickle::pickle_test
