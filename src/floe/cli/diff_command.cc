#include <iostream>
#include <nlohmann/json.hpp>

#include "floe/cli/command.h"
#include "floe/cli/model_tensors.h"
#include "floe/cli/options.h"
#include "floe/cli/tensor_diff.h"
#include "floe/cli/used_model.h"
#include "floe/io/open_tensors.h"
#include "floe/models/unwrapped_source.h"

namespace floe::cli {
namespace {

constexpr std::string_view kHelp =
    R"(usage: floe diff A B [key=value] [options]

Where the tensors of A and B differ: those that only one has, shapes, types, and values, with the number
of elements that differ and the greatest difference. A and B may be of different kinds: run folders (their
newest checkpoint), checkpoints, files of torch.save or safetensors, exported folders, and YAMLs with a
model. What is no tensor is not compared.

Two checkpoints are compared with all their tensors. A run stands for the weights of its newest checkpoint.
Where one is a whole model (an exported folder, a YAML) and the other says of which model it is, both are
compared as whole models: what a checkpoint does not hold comes from the files of its run.

Ends with 0 when they are equal, with 1 when they differ.

  --tolerance X   elements that differ by at most X count as equal (0)
  --weights       only the weights of training states, without the prefixes of trainers
  --json          one object: equal, num_equal, differences
  key=value       changes the model of a YAML (also ++key=value, ~key), or of both where neither is one:
                  where the files of a run have moved, model.lm=PATH says where they are

  floe diff runs/a runs/b
  floe diff runs/a/checkpoints/step_100 exported --tolerance 1e-6
)";

const std::vector<OptionSpec> kOptions{{"--tolerance", true}, {"--weights"}, {"--json"}};

bool is_whole(const Located& located) {
  return located.kind == PathKind::yaml ||
         (located.kind == PathKind::model && is_known_model(located.path));
}

// As whole models, or tensor by tensor. Two exported folders are the latter: they hold everything, unless
// changes say where the rest is.
bool as_models(const Located& a, const Located& b, bool changed) {
  if (!is_whole(a) && !is_whole(b)) return false;
  if (a.kind == PathKind::model && b.kind == PathKind::model && !changed) return false;
  const auto tells = [](const Located& located) {
    return is_whole(located) ||
           (located.kind != PathKind::model && layers_of(located, {}).has_value());
  };
  return tells(a) && tells(b);
}

std::shared_ptr<const TensorSource> open(const Located& located, bool weights) {
  require<ConfigError>(
      located.kind != PathKind::yaml, "diff: '", located.path,
      "' is a model, but the other does not say of which model it is; compare files "
      "of weights");
  const std::string& path = located.kind == PathKind::model ? located.path : located.checkpoint;
  std::shared_ptr<const TensorSource> source = open_tensors(path);
  return weights ? models::unwrapped(source, path) : source;
}

Exit run(const Args& args) {
  const Options options("diff", args, kOptions);
  const Words words = split_words(options.words());
  require<ConfigError>(words.paths.size() == 2, "diff: name two things to compare: floe diff A B");
  const double tolerance = options.number("--tolerance", 0);
  require<ConfigError>(tolerance >= 0, "diff: --tolerance is ", tolerance,
                       ", but must be a number from 0");
  const Located a = locate("diff", words.paths[0], Wanted::weights),
                b = locate("diff", words.paths[1], Wanted::weights);
  const bool models = as_models(a, b, !words.changes.empty());
  const bool configured = a.kind == PathKind::yaml || b.kind == PathKind::yaml;
  require<ConfigError>(models || words.changes.empty(), "diff: '",
                       words.changes.empty() ? "" : words.changes[0],
                       "' has no effect: tensors are compared as they are");
  const bool weights =
      options.has("--weights") || a.kind == PathKind::run || b.kind == PathKind::run;
  const auto side = [&](const Located& located) {
    if (!models) return open(located, weights);
    const bool changes = !configured || located.kind == PathKind::yaml;
    return model_tensors(require_model("diff", located, changes ? words.changes : Args{}));
  };
  const auto first = side(a), second = side(b);
  tell_choice(a);
  tell_choice(b);
  const TensorDiffs diffs = compare_tensors(*first, *second, tolerance);
  std::cout << (options.has("--json") ? diffs_json(diffs).dump(2) + "\n" : diffs_text(diffs));
  return diffs.equal() ? Exit::done : Exit::failed;
}

}  // namespace

const Command kDiffCommand{
    .name = "diff",
    .summary = "where two runs, checkpoints or models differ",
    .help = kHelp,
    .run = run,
};

}  // namespace floe::cli
