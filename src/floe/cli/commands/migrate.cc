#include <algorithm>
#include <filesystem>
#include <iostream>

#include "floe/cli/command.h"
#include "floe/cli/options.h"
#include "floe/cli/output_config.h"
#include "floe/config/yaml.h"
#include "floe/core/log.h"
#include "floe/migrate/lightning/lightning.h"
#include "floe/migrate/openflamingo/flags.h"
#include "floe/migrate/openflamingo/openflamingo.h"
#include "floe/train/run_config.h"

namespace floe::cli {
namespace {

// What is printed is a configuration that floe takes; a value that is out of bounds is told with
// the flag or the line that it came from. Blocks of Lightning are one part of a configuration: what
// the other part must bring is not asked for.
void check(const migrate::Page& page, bool is_part) {
  config::Value tree = page.tree();
  if (is_part) {
    config::Value rest = config::parse_inline_yaml(
        str("{model: {lm: x, vision: x}, data: {laion: {shards: x, num_samples: 1}}, train: {",
            tree.at("train.steps") ? "" : "epochs: 1", "}}"),
        config::Origin());
    config::Map& map = *tree.as<config::Map>();
    for (const auto& [block, key] :
         {std::pair("checkpoint", "keep_best"), std::pair("train", "stop")})
      if (config::Value* value = map.find(block)) value->as<config::Map>()->erase(key);
    config::merge(rest, tree);
    tree = std::move(rest);
  }
  config::load<train::RunConfig>(tree);
}

// A command that stands there without the '--' in front of it.
bool looks_like_a_command(const Args& args) {
  return std::any_of(args.begin(), args.end(), [](const std::string& word) {
    const std::string name = std::filesystem::path(word).filename().string();
    return name == "torchrun" || name == "srun" || name == "mpirun" || name == "train.py" ||
           name.starts_with("python");
  });
}

Exit run_migrate(const Args& args) {
  const auto mark = std::find(args.begin(), args.end(), "--");
  const Args command(mark == args.end() ? mark : mark + 1, args.end());
  require<ConfigError>(mark != args.end() || !looks_like_a_command(args),
                       "migrate: put '--' in front of the command: floe migrate -- ",
                       join(args, " "));
  const Options options(kMigrateCommand, Args(args.begin(), mark));
  if (options.has("--reference")) {
    std::cout << migrate::flags_reference() << "\n" << migrate::lightning_reference();
    return Exit::done;
  }
  const Args& files = options.words();
  require<ConfigError>(command.empty() || files.empty(), "migrate: '",
                       files.empty() ? "" : files[0],
                       "' stands in front of '--': name files, or a command behind '--'");
  require<ConfigError>(
      !command.empty() || !files.empty(),
      "migrate: name a configuration of Lightning, or OpenFlamingo's command behind '--': floe "
      "migrate -- torchrun ... train.py --lm_path ...");
  for (const std::string& file : files)
    require<ConfigError>(!file.ends_with(".sh") && !file.ends_with(".py"), "migrate: '", file,
                         "' is a script; put the command that it runs behind '--': floe migrate -- "
                         "srun python train.py --lm_path ...");
  require<ConfigError>(files.empty() || !options.has("--models"),
                       "migrate: --models is for OpenFlamingo's commands");
  migrate::OpenFlamingoOptions wanted;
  wanted.models = options.value("--models").value_or(wanted.models);
  require<ConfigError>(!wanted.models.empty(), "migrate: --models names no folder");
  const OutputConfig output("migrate", options.value("--output").value_or("-"),
                            options.has("--force"), files);
  const migrate::Page page = command.empty() ? migrate::from_lightning(files)
                                             : migrate::from_openflamingo(command, wanted);
  check(page, command.empty());
  for (const std::string& warning : page.warnings()) log::warn(warning);
  const std::string file = output.is_stdout() ? "migrated.yaml" : output.as_argument();
  output.write(page.text(file));
  if (!output.is_stdout()) std::cout << page.command(file) << "\n";
  return Exit::done;
}

}  // namespace

const Command kMigrateCommand{
    .name = "migrate",
    .summary = "OpenFlamingo's command or Lightning's FSDP block as a configuration of floe",
    .about = R"(usage: floe migrate [options] -- THEIR COMMAND ...
       floe migrate FILE.yaml ... [options]

Prints the configuration of floe that does what another system was told to do, with a comment for every
flag or key that says what it came from, and the command that runs it in the first lines. What has no
counterpart is said at the end; what should be looked at first is told on stderr too.

The first form takes the command that trains OpenFlamingo as one would type it: torchrun, python -m
torch.distributed.run, srun or mpirun, then train.py and its flags. Where train.py's default differs from
floe's and the flag is not there, train.py's value is written. Names of the Hugging Face hub become folders,
with the command that downloads them. The second form takes trainer and strategy of a Lightning project,
xlm-core's among them: a whole configuration, a trainer, or a strategy alone; later files win.
docs/migrating.md has every flag and key.
)",
    .options =
        {
            {"--output", "FILE",
             "write the configuration to FILE (.yaml) and print the command that runs it"},
            {"--force", "", "replace FILE"},
            {"--models", "DIR", "where models of the hub will lie (models)"},
            {"--reference", "", "the tables of docs/migrating.md, then stop"},
        },
    .closing =
        R"(  floe migrate -- torchrun --nproc_per_node=4 train.py --lm_path facebook/opt-1.3b ... > run.yaml
  floe migrate --output run.yaml -- srun python train.py --fsdp --precision amp_bf16 ...
  floe migrate trainer_strategy/fsdp.yaml experiment/mine.yaml
)",
    .words = "FILE",
    .run = run_migrate,
};

}  // namespace floe::cli
