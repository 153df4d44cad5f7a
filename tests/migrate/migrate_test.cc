// Whatever is typed or written becomes a page or a ConfigError, never anything else. What the pages
// say is held by tests/cli/test_migrate.py, with the whole program.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "floe/config/yaml.h"
#include "floe/core/error.h"
#include "floe/migrate/lightning/keys.h"
#include "floe/migrate/lightning/lightning.h"
#include "floe/migrate/openflamingo/flags.h"
#include "floe/migrate/openflamingo/openflamingo.h"

namespace floe::migrate {
namespace {

using Words = std::vector<std::string>;

// The text of a page is YAML that holds the page's values.
void expect_yaml(const Page& page) {
  const config::Value read = config::parse_yaml(page.text("run.yaml"), "run.yaml");
  if (read.is_null())
    EXPECT_TRUE(page.tree().as<config::Map>()->empty());
  else
    EXPECT_EQ(config::count_nodes(read), config::count_nodes(page.tree())) << page.text("run.yaml");
}

template <class Make>
bool is_page_or_refused(const Make& make) {
  try {
    expect_yaml(make());
    return true;
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return false;
  }
}

TEST(Migrate, AWordOfAShellIsOneLineAndPlainWherePossible) {
  EXPECT_EQ(shell_word("laion/0.tar"), "laion/0.tar");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("a b"), "'a b'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word("{0..9}.tar"), "'{0..9}.tar'");
  EXPECT_EQ(shell_word("a\nb'c\\d"), "$'a\\x0ab\\'c\\\\d'");
  EXPECT_EQ(shell_word("\xff"), "$'\\xff'");
  EXPECT_EQ(shell_word("雪 x"), "'雪 x'");
}

TEST(Migrate, ATextMeansItself) {
  EXPECT_EQ(*text_value("a${b}c").as<std::string>(), "a$${b}c");
  EXPECT_EQ(*text_value("$${b}${").as<std::string>(), "$$${b}$${");
  EXPECT_EQ(*text_value("$x {").as<std::string>(), "$x {");
}

TEST(Migrate, APageOrdersItsBlocksAndKeepsItsComments) {
  Page page("Title.");
  page.set("log.every_steps", config::Value(std::int64_t{5}), "every");
  page.set("run.name", text_value("x"), std::string(300, 'a') + " \n b");
  page.set("log.every_steps", config::Value(std::int64_t{6}), "again");
  page.leave_out("nothing");
  const std::string text = page.text("f.yaml");
  EXPECT_LT(text.find("run:"), text.find("log:"));
  EXPECT_NE(text.find("  # every again\n  every_steps: 6\n"), std::string::npos) << text;
  EXPECT_NE(text.find("# - nothing\n"), std::string::npos);
  EXPECT_EQ(page.command("a b"), "floe train 'a b'");
  expect_yaml(page);
}

Words whole_command() {
  Words words{"A=1",      "srun",           "-N", "2", "--ntasks-per-node", "4", "python",
              "train.py", "--laion_shards", "x"};
  for (const Flag& flag : openflamingo_flags()) {
    if (flag.name == "--laion_shards") continue;
    words.emplace_back(flag.name);
    if (flag.kind == FlagKind::toggle) continue;
    words.emplace_back(flag.fallback.empty() ? "y" : flag.fallback);
  }
  return words;
}

TEST(Migrate, EveryFlagAtOnceAndEveryPartOfTheCommand) {
  const Words words = whole_command();
  EXPECT_TRUE(is_page_or_refused([&] { return from_openflamingo(words, {}); }));
  for (std::size_t end = 0; end < words.size(); ++end) {
    const Words begin(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(end));
    is_page_or_refused([&] { return from_openflamingo(begin, {}); });
    Words without = words;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(end));
    is_page_or_refused([&] { return from_openflamingo(without, {}); });
  }
}

TEST(Migrate, EveryFlagWithOddValues) {
  for (const Flag& flag : openflamingo_flags()) {
    for (const char* odd :
         {"",    " ",   "-",      "--",      "-1",  "0",    "1e400", "9223372036854775808",
          "nan", "\n",  "#",      "'\"",     "${",  "\xff", "/",     "//",
          ".",   "a/",  "tcp://", "tcp://:", "x:y", "é",    "+",     "_",
          "1_0", "0x10"}) {
      const Words words{"train.py", "--laion_shards=x", str(flag.name, "=", odd)};
      is_page_or_refused([&] { return from_openflamingo(words, {}); });
      is_page_or_refused([&] {
        return from_openflamingo({"train.py", "--mmc4_shards", "x", std::string(flag.name), odd},
                                 {});
      });
    }
  }
}

class LightningFile {
 public:
  explicit LightningFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / str("floe_migrate_", getpid(), ".yaml")) {
    std::ofstream(path_) << text;
  }
  ~LightningFile() { std::filesystem::remove(path_); }
  Page page() const { return from_lightning({path_.string()}); }

 private:
  std::filesystem::path path_;
};

TEST(Migrate, EveryKeyOfLightningWithOddValues) {
  const std::vector<std::pair<const LightningBlock*, std::string>> blocks{
      {&strategy_block(), "strategy: {_target_: a.FSDPStrategy, "},
      {&strategy_block(), "trainer: {devices: 2, strategy: {class_path: DDPStrategy, "},
      {&trainer_block(), "trainer: {max_steps: 3, strategy: fsdp, "},
      {&checkpoint_block(), "callbacks: [{_target_: ModelCheckpoint, "},
      {&early_stop_block(), "callbacks: {a: {_target_: EarlyStopping, "},
      {&diagnostics_block(), "callbacks: [{_target_: FSDPDiagnosticsCallback, "},
      {&wandb_block(), "logger: {_target_: WandbLogger, "},
  };
  for (const auto& [block, begin] : blocks) {
    std::string end;
    for (auto c = begin.rbegin(); c != begin.rend(); ++c) {
      if (*c == '{') end += '}';
      if (*c == '[') end += ']';
    }
    for (const LightningKey& key : block->keys) {
      if (begin.find(str(" ", key.name, ":")) != std::string::npos) continue;
      for (const char* odd : {"null",
                              "true",
                              "-1",
                              "0",
                              "1e300",
                              "x",
                              "''",
                              "'\\n#'",
                              "[]",
                              "[1, [2]]",
                              "{}",
                              "{a: {b: c}}",
                              "{_target_: x}",
                              "{class_path: y, init_args: 3}",
                              "'${x}'",
                              "{offload_params: x}",
                              "torch.bfloat16",
                              "[a.MyDecoderLayer]",
                              "{param_dtype: [1]}",
                              "99999999999999999999"}) {
        const LightningFile file(str(begin, key.name, ": ", odd, end, "\n"));
        is_page_or_refused([&] { return file.page(); });
      }
    }
  }
}

}  // namespace
}  // namespace floe::migrate
