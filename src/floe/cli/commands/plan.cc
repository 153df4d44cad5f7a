#include <iostream>
#include <nlohmann/json.hpp>

#include "floe/cli/command.h"
#include "floe/cli/options.h"
#include "floe/cli/used_model.h"
#include "floe/core/bytes.h"
#include "floe/io/file/file.h"
#include "floe/plan/report.h"
#include "floe/plan/step/best.h"
#include "floe/plan/step/step.h"
#include "floe/plan/step/worlds.h"

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

// The options that describe a machine, and what it is to compute.
std::optional<plan::StepSettings> step_settings(const Options& options) {
  const auto gpu = options.value("--gpu"), batch = options.value("--batch");
  if (!gpu) {
    for (const char* name : {"--batch", "--nodes", "--gpus-per-node", "--intra", "--inter",
                             "--best", "--memory", "--worlds", "--html"})
      require<ConfigError>(!options.has(name), "plan: ", name, " needs --gpu");
    return std::nullopt;
  }
  require<ConfigError>(batch.has_value(),
                       "plan: --gpu needs --batch, for example --batch 64x32x1,32x256x6");
  plan::StepSettings settings{plan::find_machine(*gpu), plan::parse_batch(*batch)};
  plan::Machine& machine = settings.machine;
  machine.gpus_per_node = options.integer("--gpus-per-node", machine.gpus_per_node, 1, 1024);
  if (const auto rate = options.value("--intra"))
    machine.intra_gbs = plan::parse_rate("--intra", *rate);
  if (const auto rate = options.value("--inter"))
    machine.inter_gbs = plan::parse_rate("--inter", *rate);
  return settings;
}

// --nodes says how many ranks there are, unless the configuration does.
void apply_nodes(plan::PlanSettings& config, const Options& options,
                 const plan::StepSettings& settings) {
  if (!options.has("--nodes")) return;
  const std::int64_t nodes = options.integer("--nodes", 1, 1, 100'000);
  const std::int64_t ranks = nodes * settings.machine.gpus_per_node;
  const auto said = config.world ? config.world : config.dist.world_size;
  require<ConfigError>(!said || *said == ranks, "plan: --nodes ", nodes, " with ",
                       settings.machine.gpus_per_node, " GPUs each are ", ranks,
                       " ranks, but the configuration says ", said.value_or(0));
  config.world = ranks;
}

void print(const Options& options, const nlohmann::ordered_json& json, const std::string& text) {
  if (options.has("--json"))
    std::cout << json.dump(2) << "\n";
  else
    std::cout << text;
}

void show_best(const plan::PlanSubject& subject, const plan::StepSettings& settings,
               const Options& options) {
  const auto memory = options.value("--memory");
  const plan::Best best = plan::find_best(
      subject, settings, memory ? parse_bytes(*memory) : settings.machine.memory.bytes);
  print(options, plan::to_json(best), plan::to_text(best));
}

void show_worlds(const plan::PlanSubject& subject, const plan::StepSettings& settings,
                 const Options& options) {
  const plan::Worlds worlds =
      plan::plan_worlds(subject, settings, plan::parse_worlds(*options.value("--worlds")));
  if (const auto page = options.value("--html"))
    write_file_atomically(*page, plan::to_html(worlds));
  print(options, plan::to_json(worlds), plan::to_text(worlds));
}

template <class Config>
Exit show(config::Loaded<Config> loaded, const Options& options) {
  if (options.has("--print-config")) {
    std::cout << config::print_config(loaded.values);
    return Exit::done;
  }
  const auto settings = step_settings(options);
  if (settings) apply_nodes(loaded.config, options, *settings);
  plan::PlanSubject subject = subject_of(loaded.config);
  require<ConfigError>(!options.has("--best") || !options.has("--worlds"),
                       "plan: --best and --worlds are two questions; ask one of them");
  require<ConfigError>(!options.has("--memory") || options.has("--best"),
                       "plan: --memory is the budget of --best");
  require<ConfigError>(!options.has("--html") || options.has("--worlds"),
                       "plan: --html is the page of --worlds");
  if (options.has("--best")) return show_best(subject, *settings, options), Exit::done;
  if (options.has("--worlds")) return show_worlds(subject, *settings, options), Exit::done;
  const plan::PlanReport report = plan::make_report(std::move(subject));
  nlohmann::ordered_json json = plan::to_json(report);
  std::string text = plan::to_text(report);
  if (settings) {
    const plan::StepReport step = plan::plan_step(report, *settings);
    json["step"] = plan::to_json(report, step);
    text += "\n" + plan::to_text(report, step);
  }
  print(options, json, text);
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
With --gpu and --batch also the memory and the time of a step, by a rehearsal of the real step
without a device and a simulation of the machine.

CONFIG is YAML; later files win over earlier ones, the command line over all. strategy=NAME and
experiment=[NAME, NAME] take strategy/NAME.yaml and experiment/NAME.yaml, looked for beside the
first CONFIG, in ./configs, then among those that come with floe. A run folder stands for the
configuration that it was last started with, a checkpoint for the one that it was saved with, an exported
folder for its model.
)",
    .options =
        {
            {"world=N", "", "number of ranks"},
            {"--gpu", "FILE",
             "also memory and time of a step on this GPU: h200, h100, a100, or a file that "
             "describes a machine, as floe calibrate writes one; cpu, or a file with device: cpu, "
             "for ranks on cores"},
            {"--batch", "BATCH",
             "what a rank computes in a pass: sequences x tokens x images, as in "
             "64x32x1,32x256x6"},
            {"--nodes", "N", "number of nodes; world is that many times the GPUs of a node"},
            {"--gpus-per-node", "N", "GPUs of a node (8)"},
            {"--intra", "RATE", "of a GPU inside of a node, both directions, as in 900GB/s"},
            {"--inter", "RATE", "of a GPU between nodes, one direction, as in 400Gb/s"},
            {"--best", "",
             "instead the three fastest strategies that fit, why, and their YAML: sharding, "
             "frozen parameters, recomputation, offload and passes"},
            {"--memory", "SIZE", "that --best may use of each GPU, as in 40GiB (all of it)"},
            {"--worlds", "RANGE",
             "instead a table over numbers of ranks: 8..1024 (doubling) or 8,24,96"},
            {"--html", "FILE", "also a page with the curves of --worlds"},
            {"--json", "", "the plan as JSON"},
            {"--print-config", "",
             "every value of the configuration and where it comes from, instead of a plan"},
        },
    .closing = R"(  floe plan my.yaml world=64 strategy=hybrid
  floe plan runs/demo world=64
  floe plan my.yaml world=8 strategy.frozen.residency=resident
  floe plan configs/transformer-7b.yaml world=64 experiment=last_layers
  floe plan my.yaml world=64 --gpu h200 --batch 64x32x1,32x256x6
  floe plan my.yaml world=64 --gpu h200 --batch 64x32x1,32x256x6 --best --memory 80GiB
  floe plan my.yaml --gpu h100 --inter 200Gb/s --batch 2x4096 --worlds 8..1024 --html worlds.html
)",
    .words = "PATH",
    .keys = plan_keys,
    .run = run_plan,
};

}  // namespace floe::cli
