#include <iostream>
#include <nlohmann/json.hpp>

#include "floe/cli/command.h"
#include "floe/cli/own_configs.h"
#include "floe/config/field_info.h"
#include "floe/core/names.h"
#include "floe/plan/report.h"

namespace floe::cli {
namespace {

constexpr std::string_view kUsage =
    R"(usage: floe plan CONFIG... [world=N] [key=value] [++key=value] [~key] [--json]

What each rank will hold and move, before anything runs: the units and groups of the model, bytes
per rank between steps and at most, collectives per forward and backward, next to the same model
unsharded. No memory is taken and no other rank is needed; a model of any size is planned at once.

CONFIG is YAML; later files win over earlier ones, the command line over all. strategy=NAME and
experiment=[NAME, NAME] take strategy/NAME.yaml and experiment/NAME.yaml, looked for beside the
first CONFIG, in ./configs, then among those that come with floe.

  world=N          number of ranks
  --json           the plan as JSON
  --print-config   every value of the configuration and where it comes from, instead of a plan

  floe plan configs/demo.yaml world=4
  floe plan configs/transformer-7b.yaml world=64 strategy=hybrid experiment=last_layers
  floe plan configs/demo.yaml world=4 strategy.frozen.residency=resident

Keys:
)";

const std::string& help() {
  static const std::string page =
      std::string(kUsage) + config::help_text(config::fields_of<plan::PlanConfig>());
  return page;
}

Exit run(const Args& args) {
  const std::vector<std::string> options{"--json", "--print-config", "--help"};
  bool json = false, print_config = false;
  Args words;
  for (const std::string& arg : args) {
    if (arg == "--json") {
      json = true;
    } else if (arg == "--print-config") {
      print_config = true;
    } else {
      const std::string hint = did_you_mean(arg, options);
      require<ConfigError>(!arg.starts_with("-"), "plan: there is no option '", arg, "'",
                           hint.empty() ? "; 'floe plan --help' lists them" : hint);
      words.push_back(arg);
    }
  }
  const auto loaded = plan::load_plan_config(config::layers_from_arguments(words, own_configs()));
  if (print_config) {
    std::cout << config::print_config(loaded.values);
    return Exit::done;
  }
  const plan::PlanReport report = plan::make_report(loaded.config);
  if (json)
    std::cout << plan::to_json(report).dump(2) << "\n";
  else
    std::cout << plan::to_text(report);
  return Exit::done;
}

}  // namespace

const Command kPlanCommand{
    .name = "plan",
    .summary = "what each rank will hold and move, before anything runs",
    .help = help(),
    .run = run,
};

}  // namespace floe::cli
