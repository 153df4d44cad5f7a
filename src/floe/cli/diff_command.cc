#include <iostream>
#include <nlohmann/json.hpp>

#include "floe/cli/command.h"
#include "floe/cli/find_checkpoint.h"
#include "floe/cli/options.h"
#include "floe/cli/tensor_diff.h"
#include "floe/io/open_tensors.h"
#include "floe/models/unwrapped_source.h"

namespace floe::cli {
namespace {

constexpr std::string_view kHelp =
    R"(usage: floe diff A B [options]

Where the tensors of A and B differ: those that only one has, shapes, types, and values, with the number
of elements that differ and the greatest difference. A and B may be of different kinds: directories of
torch.distributed.checkpoint, files of torch.save or safetensors, Hugging Face folders, run folders
(their newest checkpoint). Memory stays bounded. What is no tensor is not compared.

Ends with 0 when they are equal, with 1 when they differ.

  --tolerance X   elements that differ by at most X count as equal (0)
  --weights       only the weights of training states, without the prefixes of trainers
  --json          one object: equal, num_equal, differences

  floe diff runs/a runs/b
  floe diff runs/a/checkpoints/step_100 exported --weights --tolerance 1e-6
)";

const std::vector<OptionSpec> kOptions{{"--tolerance", true}, {"--weights"}, {"--json"}};

std::shared_ptr<const TensorSource> open(const std::string& word, bool weights) {
  const std::string path = find_checkpoint(word);
  std::shared_ptr<const TensorSource> source = open_tensors(path);
  return weights ? models::unwrapped(source, path) : source;
}

Exit run(const Args& args) {
  const Options options("diff", args, kOptions);
  const Args& words = options.words();
  require<ConfigError>(words.size() == 2, "diff: name two things to compare: floe diff A B");
  const double tolerance = options.number("--tolerance", 0);
  require<ConfigError>(tolerance >= 0, "diff: --tolerance is ", tolerance,
                       ", but must be a number from 0");
  const bool weights = options.has("--weights");
  const auto a = open(words[0], weights), b = open(words[1], weights);
  const TensorDiffs diffs = compare_tensors(*a, *b, tolerance);
  std::cout << (options.has("--json") ? diffs_json(diffs).dump(2) + "\n" : diffs_text(diffs));
  return diffs.equal() ? Exit::done : Exit::failed;
}

}  // namespace

const Command kDiffCommand{
    .name = "diff",
    .summary = "where two checkpoints or files of weights differ",
    .help = kHelp,
    .run = run,
};

}  // namespace floe::cli
