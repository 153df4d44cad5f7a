// Whatever is typed or written becomes a page or a ConfigError, never anything else. What the pages
// say is held by tests/cli/test_migrate.py, with the whole program.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "floe/config/yaml.h"
#include "floe/core/error.h"
#include "floe/migrate/lightning/keys.h"
#include "floe/migrate/lightning/lightning.h"
#include "floe/migrate/openflamingo/flags.h"
#include "floe/migrate/openflamingo/openflamingo.h"

namespace floe::migrate::migrate_test {
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

Words split(const std::string& text) {
  Words words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// All comments as one line.
std::string comments_of(const Page& page) {
  std::string all;
  std::istringstream lines(page.text("run.yaml"));
  for (std::string line; std::getline(lines, line);)
    for (const std::string& word : split(line))
      if (word != "#") all += word + " ";
  return all;
}

TEST(Migrate, Launchers) {
  struct Case {
    std::string before, command, said;
  };
  const std::vector<Case> cases{
      {"", "floe train", ""},
      {"python", "floe train", ""},
      {"python -u", "floe train", "python's -u: floe is a program of its own"},
      {"nohup python", "nohup floe train", ""},
      {"torchrun", "floe train", ""},
      {"torchrun --nproc_per_node 3 --log_dir logs", "floe launch -n 3 -- train",
       "torchrun --nproc_per_node 3 --log_dir logs: "},
      {"torchrun --nproc_per_node=gpu", "torchrun --nproc_per_node=gpu --no-python floe train",
       "--no-python says"},
      {"torchrun --nnodes=1:4 --nproc_per_node=8",
       "torchrun --nnodes=1:4 --nproc_per_node=8 --no-python floe train", ""},
      {"torchrun --nproc_per_node=2 --max_restarts=3",
       "torchrun --nproc_per_node=2 --max_restarts=3 --no-python floe train", ""},
      {"srun -N 2 torchrun --nnodes 2 --nproc_per_node 4",
       "srun -N 2 torchrun --nnodes 2 --nproc_per_node 4 --no-python floe train", ""},
      {"srun -n 8 -N2 python3.9", "srun -n 8 -N2 floe train", "floe reads SLURM's variables"},
      {"mpirun --np 4 -x NCCL_DEBUG python", "mpirun --np 4 -x NCCL_DEBUG floe train",
       "floe reads OpenMPI's variables"},
      {"accelerate launch --num_processes 4", "floe launch -n 4 -- train",
       "accelerate launch --num_processes 4: floe launch"},
      {"deepspeed --num_gpus 2", "floe launch -n 2 -- train",
       "deepspeed --num_gpus 2: floe launch"},
      {"NCCL_DEBUG=INFO OMP_NUM_THREADS=4 python", "NCCL_DEBUG=INFO OMP_NUM_THREADS=4 floe train",
       ""},
      {"env PYTHONPATH=open_flamingo python", "floe train",
       "PYTHONPATH=open_flamingo: there is no Python in a run of floe"},
  };
  for (const Case& c : cases) {
    Words words = split(c.before);
    // Python takes a module too.
    const Words script = c.before == "python" ? Words{"-m", "open_flamingo.train.train"}
                                              : Words{"/x/open_flamingo/train/train.py"};
    words.insert(words.end(), script.begin(), script.end());
    words.insert(words.end(), {"--laion_shards", "x"});
    const Page page = from_openflamingo(words, {});
    EXPECT_EQ(page.command("run.yaml"), c.command + " run.yaml") << c.before;
    EXPECT_NE(comments_of(page).find(c.said), std::string::npos) << page.text("run.yaml");
  }
}

std::string refusal(const std::function<Page()>& make) {
  try {
    make();
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(Migrate, WrongCommandsAreASentence) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"torchrun", "--nproc_per_node=4"},
       "there is no train.py in the command 'torchrun --nproc_per_node=4'"},
      {{"torchrun train.py --lm_path x"}, "take the quotes around it away"},
      {{"python", "eval/evaluate.py"}, "'eval/evaluate.py' is not OpenFlamingo's train.py"},
      {{"python", "-m", "open_flamingo.eval.evaluate"},
       "'-m open_flamingo.eval.evaluate' is not OpenFlamingo's train.py"},
      {{"bash", "run_train.py"}, "'bash' starts a script; name the command inside of it"},
      {{"env", "-u", "X", "train.py"}, "'env -u' is not understood; write the variables alone"},
      {{"torchrun", "--nproc_per_node=0", "train.py"},
       "--nproc_per_node is '0', but must be a number of at least 1"},
      {{"torchrun", "--nproc_per_node=-3", "train.py"},
       "--nproc_per_node is '-3', but must be a number of at least 1"},
      {{"torchrun", "--nproc_per_node", "many", "train.py"},
       "--nproc_per_node is 'many', but must be a number of at least 1"},
      {{"deepspeed", "train.py"}, "deepspeed does not say how many ranks it starts"},
  };
  for (const auto& [words, sentence] : cases)
    EXPECT_NE(refusal([&] { return from_openflamingo(words, {}); }).find(sentence),
              std::string::npos)
        << sentence;
}

TEST(Migrate, WrongFlagsAreASentence) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"--dist_url", "x"},
       "'--dist_url' is no flag of OpenFlamingo's train.py; did you mean '--dist-url'?"},
      {{"--lm_path"}, "--lm_path needs a value behind it"},
      {{"--lm_path", "--seed", "1"},
       "--lm_path needs a value behind it, and '--seed' is a flag; write --lm_path=VALUE"},
      {{"--seed", "x"}, "--seed is 'x', but must be a whole number"},
      {{"--seed", "1.5"}, "--seed is '1.5', but must be a whole number"},
      {{"--learning_rate", "nan"}, "--learning_rate is 'nan', but must be a number"},
      {{"--learning_rate", "1e999"}, "--learning_rate is '1e999', but must be a number"},
      {{"--precision", "fp8"},
       "--precision is 'fp8', but must be one of amp_bf16, amp_bfloat16, bf16, fp16, fp32"},
      {{"--fsdp=yes"}, "--fsdp takes no value, got '--fsdp=yes'"},
      {{"--batch_size", "4"},
       "'--batch_size' could be --batch_size_mmc4 or --batch_size_laion of train.py"},
      {{"stray"}, "train.py takes no word 'stray' beside its flags"},
      {{" ", "--fsdp"}, "a backslash with a space behind it does not continue a line"},
      {{"--laion_shards="}, "neither --laion_shards nor --mmc4_shards is given"},
      {{"--run_name", "a/.."}, "--run_name 'a/..' names no folder of its own"},
      {{"--lm_path="}, "--lm_path is empty"},
      {{"--save_checkpoints_to_wandb"}, "--save_checkpoints_to_wandb needs --report_to_wandb"},
  };
  for (const auto& [flags, sentence] : cases) {
    Words words{"train.py", "--laion_shards", "x"};
    words.insert(words.end(), flags.begin(), flags.end());
    EXPECT_NE(refusal([&] { return from_openflamingo(words, {}); }).find(sentence),
              std::string::npos)
        << sentence;
  }
}

TEST(Migrate, BatchesOfBothSourcesAreCompared) {
  const auto warning = [](const std::string& before, const std::string& flags) {
    Words words = split(before +
                        " train.py --laion_shards x --mmc4_shards y --mmc4_textsim_threshold 0.2 "
                        "--tokenizer_path x --train_num_samples_laion 800 " +
                        flags);
    return join(from_openflamingo(words, {}).warnings(), "; ");
  };
  EXPECT_EQ(warning("", "--train_num_samples_mmc4 800"), "");
  EXPECT_NE(warning("torchrun --nproc_per_node=2", "--train_num_samples_mmc4 8000")
                .find("an epoch has 4 batches of LAION and 32 of MMC4 on 2 ranks"),
            std::string::npos);
  // Without the number of ranks only what train.py compares is known.
  EXPECT_NE(warning("srun", "--train_num_samples_mmc4 8000 --batch_size_laion 100")
                .find("--train_num_samples by --batch_size is 8 for LAION and 62 for MMC4; "
                      "train.py refuses that"),
            std::string::npos);
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

TEST(Migrate, WrongFilesAreASentence) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[1, 2]", "is no block of Lightning"},
      {"a: 1", "has neither trainer nor strategy, and none of their keys; it has a"},
      {"trainer: 5", "trainer must be a block, not 5"},
      {"strategy: xla", ":1:11: strategy is 'xla', which floe migrate does not know"},
      {"strategy: {_target_: a.XLAStrategy}",
       "the strategy is a.XLAStrategy, which floe migrate does not know"},
      {"state_dict_type: x", "state_dict_type is 'x', but must be full or sharded"},
      {"mixed_precision: bf16", "mixed_precision must be a block"},
      {"mixed_precision: {_target_: my.policy}",
       "mixed_precision is made by my.policy, which says nothing here"},
      {"mixed_precision: {param_dtype: int8}", "param_dtype is 'int8', but floe has"},
      {"mixed_precision: {grad_dtype: null}", "mixed_precision.grad_dtype is no argument"},
      {"trainer: {precision: 64-true}", "precision is '64-true', which floe does not have"},
      {"trainer: {max_steps: many}", "max_steps must be a whole number, not 'many'"},
      {"trainer: {gradient_clip_val: 1, gradient_clip_algorithm: x}",
       "gradient_clip_algorithm is 'x'"},
      {"timeout: {_target_: timedelta, weeks: 1}", "timeout.weeks is no unit"},
      {"trainer: {<<: [{a: 1}, x]}", ":1:24: '<<' merges a block or a list of blocks, not 'x'"},
      {"train: {steps: 3}", "is already a configuration of floe; give it to floe train"},
  };
  for (const auto& [text, sentence] : cases) {
    const LightningFile file(text + "\n");
    EXPECT_NE(refusal([&] { return file.page(); }).find(sentence), std::string::npos)
        << sentence << ": " << refusal([&] { return file.page(); });
  }
}

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
    for (const char c : begin) {
      if (c == '{') end = '}' + end;
      if (c == '[') end = ']' + end;
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
}  // namespace floe::migrate::migrate_test
