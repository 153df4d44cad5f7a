#include "floe/data/shards/grouping.h"

#include <gtest/gtest.h>

namespace floe::data::grouping_test {
namespace {

std::string split(std::string_view name) {
  const auto member = split_member_name(name);
  return member ? member->key + "|" + member->suffix : "-";
}

TEST(MemberName, KeyAndSuffix) {
  EXPECT_EQ(split("a.jpg"), "a|jpg");
  EXPECT_EQ(split("a.Seg.JPG"), "a|seg.jpg");
  EXPECT_EQ(split("./dir.v1/a.txt"), "./dir.v1/a|txt");
  EXPECT_EQ(split("a."), "a|");
  EXPECT_EQ(split("x..y"), "x|.y");
  EXPECT_EQ(split("dir/.hidden"), "dir/|hidden");
  EXPECT_EQ(split("a/b/.x"), "a/b/|x");
  for (const char* none : {"README", "dir.v1/README", ".hidden", "./.hidden", "", "a.b/.x", "/"})
    EXPECT_EQ(split(none), "-") << none;
}

TEST(MemberName, MetadataOfTheShard) {
  for (const char* none : {"__meta__", "__", "___", "__meta__/a.jpg", "____/a.jpg", "__a.jpg__"})
    EXPECT_EQ(split(none), "-") << none;
  EXPECT_EQ(split("__meta__.jpg"), "__meta__|jpg");
  EXPECT_EQ(split("___/a.jpg"), "___/a|jpg");
  EXPECT_EQ(split("x/__meta__.jpg"), "x/__meta__|jpg");
}

// Shards as lists of names; a `*` in front gives the file content. The samples as
// "key:suffix,suffix".
std::vector<std::string> grouped(const std::vector<std::vector<std::string>>& shards, Rules rules) {
  Grouper grouper(rules);
  std::vector<std::string> samples;
  const auto note = [&](const std::optional<RawSample>& sample) {
    if (!sample) return;
    std::string text = sample->shard + "/" + sample->key + ":";
    for (const Field& field : sample->fields) text += field.suffix + ",";
    samples.push_back(text);
  };
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const std::string& name : shards[i]) {
      const bool full = name.starts_with('*');
      note(grouper.add(std::to_string(i), full ? name.substr(1) : name, Bytes(full ? 1 : 0)));
    }
    note(grouper.end_shard());
  }
  note(grouper.finish());
  return samples;
}

using Samples = std::vector<std::string>;

TEST(Grouper, NeighboursAndRepeatedSuffixes) {
  EXPECT_EQ(grouped({{"a.jpg", "a.txt", "b.txt", "b.TXT", "a.json"}}, Rules::openflamingo),
            (Samples{"0/a:jpg,txt,", "0/b:txt,", "0/b:txt,", "0/a:json,"}));
  EXPECT_EQ(grouped({{"a.jpg", "README", "__m__", "a.txt"}}, Rules::openflamingo),
            (Samples{"0/a:jpg,txt,"}))
      << "skipped files part nothing";
}

TEST(Grouper, CorrectionShardBordersEndSamples) {
  const std::vector<std::vector<std::string>> shards{{"a.jpg"}, {}, {"a.txt", "a.txt"}};
  EXPECT_EQ(grouped(shards, Rules::openflamingo), (Samples{"0/a:jpg,txt,", "2/a:txt,"}));
  EXPECT_EQ(grouped(shards, Rules::corrected), (Samples{"0/a:jpg,", "2/a:txt,", "2/a:txt,"}));
}

TEST(Grouper, NamesThatWebDatasetReserves) {
  EXPECT_EQ(grouped({{"a.jpg", "a.__key__", "a.txt"}}, Rules::openflamingo),
            (Samples{"0/a:jpg,", "0/a:__key__,", "0/a:txt,"}));
  EXPECT_EQ(grouped({{"a.jpg", "a.__url__", "a.txt"}}, Rules::openflamingo),
            (Samples{"0/a:jpg,", "0/a:__url__,txt,"}));
  EXPECT_EQ(grouped({{"a.jpg", "*a.__bad__", "b.txt"}}, Rules::openflamingo),
            (Samples{"0/b:txt,"}));
  EXPECT_EQ(grouped({{"a.jpg", "a.__bad__"}}, Rules::openflamingo), (Samples{"0/a:jpg,__bad__,"}));
}

}  // namespace
}  // namespace floe::data::grouping_test
