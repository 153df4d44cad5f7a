#include <iostream>
#include <nlohmann/json.hpp>

#include "floe/cli/command.h"
#include "floe/cli/options.h"
#include "floe/cli/used_model.h"
#include "floe/io/file/file.h"
#include "floe/plan/report.h"

namespace floe::cli {
namespace {

std::vector<KeySection> plan_keys() {
  return {{"Keys:", config::fields_of<plan::RunPlanConfig>()},
          {"Keys of a model that exists only as sizes (model.type=transformer):",
           config::fields_of<plan::PlanConfig>()}};
}

// A model without files, by its sizes alone.
bool is_only_sizes(const config::Layers& layers) {
  const config::Value tree = config::compose(layers).tree;
  const config::Value* type = tree.at("model.type");
  const auto* name = type ? type->as<std::string>() : nullptr;
  return name && *name == "transformer";
}

// Files as they are; what is no YAML by what it says of itself.
config::Layers layers_for(const Args& arguments) {
  const Words words = split_words(arguments);
  if (words.paths.size() != 1 || kind_of(words.paths[0]) == PathKind::nothing)
    return config::layers_from_arguments(arguments, own_configs());
  Located located = locate("plan", words.paths[0], Wanted::config);
  const bool configured = path_exists(located.path + "/config.yaml");
  if (located.kind == PathKind::run && configured)
    located.checkpoint.clear();  // a plan is of the next start, whatever was saved
  require<ConfigError>(located.kind != PathKind::run || !located.checkpoint.empty() || configured,
                       "plan: the run '", located.path,
                       "' has neither a config.yaml nor a checkpoint that says what it trained");
  const auto layers = layers_of(located, words.changes);
  require<ConfigError>(layers.has_value(), "plan: '", words.paths[0],
                       "' does not say of which model it is; name a training configuration");
  return *layers;
}

template <class Config>
Exit show(const config::Loaded<Config>& loaded, const Options& options) {
  if (options.has("--print-config")) {
    std::cout << config::print_config(loaded.values);
    return Exit::done;
  }
  const plan::PlanReport report = plan::make_report(subject_of(loaded.config));
  if (options.has("--json"))
    std::cout << plan::to_json(report).dump(2) << "\n";
  else
    std::cout << plan::to_text(report);
  return Exit::done;
}

Exit run_plan(const Args& args) {
  const Options options(kPlanCommand, args);
  const config::Layers layers = layers_for(options.words());
  if (is_only_sizes(layers)) return show(plan::load_plan_config(layers), options);
  return show(plan::load_run_plan_config(layers), options);
}

}  // namespace

const Command kPlanCommand{
    .name = "plan",
    .summary = "what each rank will hold and move, before anything runs",
    .about = R"(usage: floe plan CONFIG... [world=N] [key=value] [++key=value] [~key] [--json]
       floe plan RUN|CHECKPOINT|EXPORTED [world=N] [key=value] [++key=value] [~key] [--json]

What each rank will hold and move, before anything runs: the units and groups of the model, bytes
per rank between steps and at most, collectives per forward and backward, next to the same model
unsharded. No memory is taken and no other rank is needed; a model of any size is planned at once.
The configuration is that of floe train, or the sizes of a decoder (model.type=transformer).

CONFIG is YAML; later files win over earlier ones, the command line over all. strategy=NAME and
experiment=[NAME, NAME] take strategy/NAME.yaml and experiment/NAME.yaml, looked for beside the
first CONFIG, in ./configs, then among those that come with floe. A run folder stands for the
configuration that it was last started with, a checkpoint for the one that it was saved with, an exported
folder for its model.
)",
    .options =
        {
            {"world=N", "", "number of ranks"},
            {"--json", "", "the plan as JSON"},
            {"--print-config", "",
             "every value of the configuration and where it comes from, instead of a plan"},
        },
    .closing = R"(  floe plan my.yaml world=64 strategy=hybrid
  floe plan runs/demo world=64
  floe plan my.yaml world=8 strategy.frozen.residency=resident
  floe plan configs/transformer-7b.yaml world=64 experiment=last_layers
)",
    .words = "PATH",
    .keys = plan_keys,
    .run = run_plan,
};

}  // namespace floe::cli
