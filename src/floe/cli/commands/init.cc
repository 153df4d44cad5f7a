#include <iostream>

#include "floe/cli/command.h"
#include "floe/cli/options.h"
#include "floe/cli/output_config.h"
#include "floe/core/bytes.h"
#include "floe/core/log.h"
#include "floe/data/shards/shard_list.h"
#include "floe/io/file/file.h"
#include "floe/starter/data_facts.h"
#include "floe/starter/starter.h"

namespace floe::cli {
namespace {

constexpr std::int64_t kMostRanks = 100'000;

// The files that a configuration would replace, if it went to one of them.
std::vector<std::string> files_of(const starter::StarterOptions& chosen) {
  std::vector<std::string> files;
  for (const std::string& word : chosen.data)
    for (std::string& file : data::expand_shards(starter::parse_data_word(word).pattern))
      files.push_back(std::move(file));
  return files;
}

std::int64_t gpu_memory_of(const std::string& text) {
  std::int64_t bytes = 0;
  try {
    bytes = parse_bytes(text);
  } catch (const ConfigError& error) {
    throw ConfigError(str("init: --gpu-memory: ", error.what()));
  }
  require<ConfigError>(bytes >= kGiB, "init: --gpu-memory is ", text,
                       ", but must be 1GiB or more; write it as 80GiB");
  return bytes;
}

starter::StarterOptions starter_options(const Options& options) {
  require<ConfigError>(options.words().size() == 1,
                       "init: name one model folder, and what to train on with --data: "
                       "floe init MODEL --data PATTERN",
                       options.words().size() > 1 ? str("; got '", join(options.words(), "' and '"),
                                                        "' (a pattern stands in quotes)")
                                                  : "");
  require<ConfigError>(options.has("--data"),
                       "init: say what to train on with --data PATTERN; 'floe init --help' says "
                       "what it can be");
  require<ConfigError>(!options.has("--lora") || !options.has("--full"),
                       "init: --lora and --full say opposite things; give one of them");
  require<ConfigError>(
      !options.has("--full") || !options.has("--vision"),
      "init: --full is for a model that reads text alone; of a Flamingo the parts "
      "between its frozen models train, and train.trainable in the file names more");
  starter::StarterOptions chosen;
  chosen.model = options.words().front();
  chosen.data = options.values("--data");
  chosen.vision = options.value("--vision").value_or("");
  chosen.tokenizer = options.value("--tokenizer").value_or("");
  chosen.output = options.value("--output").value_or(chosen.output);
  chosen.wishes.lora = options.has("--lora");
  chosen.wishes.full = options.has("--full");
  if (options.has("--ranks")) chosen.wishes.ranks = options.integer("--ranks", 1, 1, kMostRanks);
  if (const auto memory = options.value("--gpu-memory"))
    chosen.wishes.gpu_memory = gpu_memory_of(*memory);
  return chosen;
}

// "model    opt, 12 layers …"
std::string line_of(std::string what, const std::string& text) {
  what.resize(9, ' ');
  return what + text + "\n";
}

Exit run_init(const Args& args) {
  const Options options(kInitCommand, args);
  starter::StarterOptions chosen = starter_options(options);
  // What the data is is only asked where something is there to be replaced.
  const OutputConfig output("init", chosen.output, options.has("--force"),
                            path_exists(chosen.output) ? files_of(chosen) : Args{});
  chosen.output = output.as_argument();
  const starter::Starter made = starter::make_starter(chosen);
  for (const std::string& warning : made.warnings) log::warn(warning);

  std::ostream& words = output.is_stdout() ? std::cerr : std::cout;
  for (const auto& [what, text] : made.summary) words << line_of(what, text);
  output.write(made.yaml);
  if (!output.is_stdout()) words << line_of("wrote", chosen.output);
  for (const std::string& command : made.next)
    words << line_of(&command == &made.next.front() ? "next" : "", command);
  return Exit::done;
}

}  // namespace

const Command kInitCommand{
    .name = "init",
    .summary = "a commented configuration for a model and data, by what it sees of them",
    .about = R"(usage: floe init MODEL --data PATTERN [--data PATTERN] [--vision CLIP] [options]

Writes a commented configuration for floe train after a look at the model, the data and this
machine: how many samples there are and how long they are, what fits into memory, over how many
ranks. Every value says what it means and why it was chosen. Nothing is trained.

MODEL is a Hugging Face folder: config.json, weights (safetensors or .bin) and a tokenizer. With
--vision it becomes a Flamingo, which learns from pictures and text; alone it learns from text.

Data is one of these, recognised by what is in it:
  tars of pictures (.jpg, .png) with captions (.txt), or of MMC4 documents (floe convert mmc4)
  .jsonl with 'text', or tars of .txt
  .jsonl with 'prompt' and 'response', or tars of such .json
  .safetensors of prepared batches
given as a path, a folder of such files, a pattern ('shards/{000..015}.tar', 'a/*.tar'), a list
(@FILE), pipe:COMMAND or s3://. Commands are run once, for their first shard.
)",
    .options =
        {
            {"--data", "PATTERN",
             "what to train on; once for each source, such as LAION and MMC4 together. "
             "KIND=PATTERN "
             "(laion, mmc4, text, instruct) says what it is where that cannot be seen",
             kRepeats},
            {"--vision", "PATH",
             "CLIP image tower: a folder or file of open_clip, Hugging Face or OpenAI"},
            {"--tokenizer", "DIR", "folder of the tokenizer, where MODEL has none"},
            {"--lora", "",
             "train low-rank adapters; otherwise they are chosen when all of a model that reads "
             "text alone does not fit into memory"},
            {"--full", "", "train all of it, whatever it needs"},
            {"--ranks", "N", "ranks to write it for; otherwise the GPUs of this machine, else 1"},
            {"--gpu-memory", "SIZE",
             "write it for GPUs of that memory, such as 80GiB, which need not be here"},
            {"--output", "FILE", "the file to write (train.yaml); - is stdout"},
            {"--force", "", "replace FILE where it exists"},
        },
    .closing = R"(  floe init opt-125m --data 'texts/*.jsonl' --output my.yaml
  floe init opt-1.3b --vision ViT-L-14.pt --data 'laion/{00000..00127}.tar' --data mmc4
  floe init llama-7b --data tasks.jsonl --lora --ranks 8 --gpu-memory 80GiB
)",
    .words = "DIR",
    .run = run_init,
};

}  // namespace floe::cli
