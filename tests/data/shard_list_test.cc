#include "floe/data/shards/shard_list.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "floe/core/error.h"

namespace floe::data::shard_list_test {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

TEST(Braces, AsTheBraceexpandPackage) {
  EXPECT_EQ(expand_braces("a{1..3}b"), (Strings{"a1b", "a2b", "a3b"}));
  EXPECT_EQ(expand_braces("{07..10}"), (Strings{"07", "08", "09", "10"}));
  EXPECT_EQ(expand_braces("{9..011}"), (Strings{"009", "010", "011"}));
  EXPECT_EQ(expand_braces("{2..-1}"), (Strings{"2", "1", "0", "-1"}));
  EXPECT_EQ(expand_braces("{-01..1}"), (Strings{"-01", "000", "001"}));
  EXPECT_EQ(expand_braces("{0..9..4}"), (Strings{"0", "4", "8"}));
  EXPECT_EQ(expand_braces("{9..0..-4}"), (Strings{"9", "5", "1"}));
  EXPECT_EQ(expand_braces("{1..2..0}"), (Strings{"1", "2"}));
  EXPECT_EQ(expand_braces("{a..g..3}"), (Strings{"a", "d", "g"}));
  EXPECT_EQ(expand_braces("{c..a}"), (Strings{"c", "b", "a"}));
  EXPECT_EQ(expand_braces("{Y..b}"), (Strings{"Y", "Z", "a", "b"}));
  EXPECT_EQ(expand_braces("x{,.gz}"), (Strings{"x", "x.gz"}));
  EXPECT_EQ(expand_braces("p{2.{5..6},3}"), (Strings{"p2.5", "p2.6", "p3"}));
  EXPECT_EQ(expand_braces("{a,b}{1,2}"), (Strings{"a1", "a2", "b1", "b2"}));
  EXPECT_EQ(expand_braces("{x}"), (Strings{"{x}"}));
  EXPECT_EQ(expand_braces("{{1..2}}"), (Strings{"{1}", "{2}"}));
  EXPECT_EQ(expand_braces("{}"), (Strings{"{}"}));
  EXPECT_EQ(expand_braces(R"({1\{2,3})"), (Strings{"1{2", "3"}));
  EXPECT_EQ(expand_braces("plain"), (Strings{"plain"}));
  EXPECT_EQ(expand_braces(""), (Strings{""}));
}

TEST(Braces, Errors) {
  for (const char* wrong : {"{1{2,3}", "a}", "{", "{a,b"})
    EXPECT_THROW(expand_braces(wrong), ConfigError) << wrong;
  EXPECT_THROW(expand_braces("{1..100}{1..100}", 1000), ConfigError);
  EXPECT_THROW(expand_braces("{1..99999999999999999999}"), ConfigError);
  EXPECT_THROW(expand_braces("{0..999999999}"), ConfigError);
  EXPECT_THROW(expand_braces(std::string(1000, '{') + std::string(1000, '}')), ConfigError);
}

class ShardList : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("floe_shards_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    for (const char* name : {"00.tar", "01.tar", "03.tar", "odd{x}.tar"}) touch(name);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void touch(const std::string& name, const std::string& text = "") const {
    std::ofstream(folder_ / name) << text;
  }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  std::string error_of(const std::string& shards) const {
    try {
      expand_shards(shards);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  fs::path folder_;
};

TEST_F(ShardList, BracesKeepMissingShards) {
  EXPECT_EQ(expand_shards(at("{00..02}.tar")), (Strings{at("00.tar"), at("01.tar"), at("02.tar")}));
  EXPECT_EQ(expand_shards(at("00.tar") + "::" + at("{07,01}.tar")),
            (Strings{at("00.tar"), at("07.tar"), at("01.tar")}));
}

TEST_F(ShardList, WildCards) {
  EXPECT_EQ(expand_shards(at("0*.tar")), (Strings{at("00.tar"), at("01.tar"), at("03.tar")}));
  EXPECT_EQ(expand_shards(at("{03,0[01]}.tar")),
            (Strings{at("03.tar"), at("00.tar"), at("01.tar")}));
}

TEST_F(ShardList, AFileOfThatNameWins) {
  EXPECT_EQ(expand_shards(at("odd{x}.tar")), (Strings{at("odd{x}.tar")}));
}

TEST_F(ShardList, Remote) {
  EXPECT_EQ(expand_shards("s3://b/k-{0..1}.tar"),
            (Strings{"pipe:aws s3 cp s3://b/k-0.tar -", "pipe:aws s3 cp s3://b/k-1.tar -"}));
  EXPECT_EQ(expand_shards("s3://b/it's $HOME.tar"),
            (Strings{R"(pipe:aws s3 cp 's3://b/it'\''s $HOME.tar' -)"}));
  EXPECT_EQ(expand_shards("pipe:cat {a,b}.tar"), (Strings{"pipe:cat a.tar", "pipe:cat b.tar"}));
}

TEST_F(ShardList, ListInAFile) {
  touch("list.txt", "# ours\n" + at("{00..01}.tar") + "\r\n\ns3://b/k.tar\n");
  EXPECT_EQ(expand_shards("@" + at("list.txt")),
            (Strings{at("00.tar"), at("01.tar"), "pipe:aws s3 cp s3://b/k.tar -"}));
  EXPECT_NE(error_of("@" + at("none.txt")).find("none.txt"), std::string::npos);
}

TEST_F(ShardList, NamesInAListAreLookedForBesideIt) {
  fs::create_directory(folder_ / "sub");
  touch("sub/x.tar", "");
  touch("sub/list.txt", "x.tar\n");
  EXPECT_EQ(expand_shards("@" + at("sub/list.txt")), (Strings{at("sub/x.tar")}));
}

TEST_F(ShardList, PartsAreResolvedBesideTheFileThatNamesThem) {
  const std::string yaml = at("a.yaml");
  EXPECT_EQ(resolve_shards("{00..02}.tar", yaml), at("{00..02}.tar"));
  EXPECT_EQ(resolve_shards("0*.tar::./01.tar::pipe:cat {a,b}::s3://b/{0..1}.tar::/x/y.tar", yaml),
            at("0*.tar") + "::" + at("01.tar") + "::pipe:cat {a,b}::s3://b/{0..1}.tar::/x/y.tar");
  touch("list.txt", "x.tar\n");
  EXPECT_EQ(resolve_shards("@list.txt", yaml), "@" + at("list.txt"));
  // On the command line it is the working directory alone.
  EXPECT_EQ(resolve_shards("{00..02}.tar", ""), "{00..02}.tar");
  const auto before = fs::current_path();
  fs::create_directory(folder_ / "here");
  touch("here/only.tar", "");
  fs::current_path(folder_ / "here");
  EXPECT_EQ(resolve_shards("only.tar", yaml), at("here/only.tar"));
  EXPECT_EQ(resolve_shards("only.tar", ""), at("here/only.tar"));
  touch("only.tar", "");
  EXPECT_EQ(resolve_shards("only.tar", yaml), at("only.tar"));  // beside the file comes first
  fs::current_path(before);
  EXPECT_EQ(unfound_part("no/{0..3}.tar::/x.tar"), "no/{0..3}.tar");
  EXPECT_EQ(unfound_part("no.tar::/x.tar"), std::nullopt);
  EXPECT_EQ(unfound_part("no.tar"), "no.tar");
}

TEST_F(ShardList, AFolderWithOddCharactersIsNoPattern) {
  fs::create_directory(folder_ / "{a,b}[1]");
  touch("{a,b}[1]/0.tar", "");
  touch("{a,b}[1]/1.tar", "");
  const std::string resolved = resolve_shards("{0..1}.tar", at("{a,b}[1]/a.yaml"));
  EXPECT_EQ(expand_shards(resolved), (Strings{at("{a,b}[1]/0.tar"), at("{a,b}[1]/1.tar")}))
      << resolved;
}

TEST_F(ShardList, ErrorsSayWhatIsThere) {
  EXPECT_NE(error_of(at("{04..09}.tar")).find("4 files, such as '0"), std::string::npos)
      << error_of(at("{04..09}.tar"));
  EXPECT_NE(error_of(at("no/*.tar")).find("there is no folder"), std::string::npos);
  EXPECT_NE(error_of(at("9*.tar")).find("no shard matches"), std::string::npos);
  EXPECT_NE(error_of(at("9.tar")).find("there is no shard '"), std::string::npos);
  EXPECT_NE(error_of(at("00.tar") + "::").find("empty part"), std::string::npos);
  EXPECT_NE(error_of("").find("empty part"), std::string::npos);
}

}  // namespace
}  // namespace floe::data::shard_list_test
