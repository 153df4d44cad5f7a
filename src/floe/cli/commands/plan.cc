#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "floe/cli/command.h"
#include "floe/cli/options.h"
#include "floe/cli/used_model.h"
#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/io/file/file.h"
#include "floe/models/build.h"
#include "floe/plan/choose/batches.h"
#include "floe/plan/choose/choose.h"
#include "floe/plan/choose/data_plan.h"
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

constexpr std::int64_t kBatchesLookedAt = 100;

// Which options go together.
void check_options(const Options& options) {
  if (!options.has("--gpu"))
    for (const char* name : {"--batch", "--data", "--batches", "--nodes", "--gpus-per-node",
                             "--intra", "--inter", "--best", "--memory", "--worlds", "--html"})
      require<ConfigError>(!options.has(name), "plan: ", name, " needs --gpu");
  const auto exclude = [&](const char* one, const char* other, const char* why) {
    require<ConfigError>(!options.has(one) || !options.has(other), "plan: ", one, " and ", other,
                         " ", why);
  };
  const auto belongs = [&](const char* one, const char* to, const char* why) {
    require<ConfigError>(!options.has(one) || options.has(to), "plan: ", one, " is ", why);
  };
  exclude("--batch", "--data", "both say what is computed; keep one of them");
  exclude("--best", "--worlds", "are two questions; ask one of them");
  exclude("--data", "--worlds",
          "do not go together, since every number of ranks has other batches; say --batch");
  belongs("--batches", "--data", "how many batches --data looks at");
  belongs("--memory", "--best", "the budget of --best");
  belongs("--html", "--worlds", "the page of --worlds");
  options.written("--html", ".html");
}

std::optional<plan::Machine> machine_of(const Options& options) {
  const auto gpu = options.value("--gpu");
  if (!gpu) return std::nullopt;
  plan::Machine machine = plan::find_machine(*gpu);
  machine.gpus_per_node = options.integer("--gpus-per-node", machine.gpus_per_node, 1, 1024);
  if (const auto rate = options.value("--intra"))
    machine.intra_gbs = plan::parse_rate("--intra", *rate);
  if (const auto rate = options.value("--inter"))
    machine.inter_gbs = plan::parse_rate("--inter", *rate);
  return machine;
}

// --nodes says how many ranks there are, unless the configuration does.
void apply_nodes(plan::PlanSettings& config, const Options& options, const plan::Machine& machine) {
  if (!options.has("--nodes")) return;
  const std::int64_t nodes = options.integer("--nodes", 1, 1, 100'000);
  const std::int64_t ranks = nodes * machine.gpus_per_node;
  const auto said = config.world ? config.world : config.dist.world_size;
  require<ConfigError>(!said || *said == ranks, "plan: --nodes ", nodes, " with ",
                       machine.gpus_per_node, " GPUs each are ", ranks,
                       " ranks, but the configuration says ", said.value_or(0));
  config.world = ranks;
}

void print(const Options& options, const nlohmann::ordered_json& json, const std::string& text) {
  if (options.has("--json"))
    std::cout << json.dump(2) << "\n";
  else
    std::cout << text;
}

// The data of a training configuration, as far as a plan asks for it.
class PlannedData {
 public:
  explicit PlannedData(const config::Loaded<plan::RunPlanConfig>& loaded)
      : config_(loaded.config),
        data_(plan::data_of(loaded)),
        built_(models::build_model(config_.model, plan::seed_of(config_))) {}

  plan::DataOfRun of_run() const {
    return {.data = data_,
            .built = built_,
            .packed = config_.train.packed,
            .seed = plan::seed_of(config_),
            .world_size = config_.world_size()};
  }
  int passes_per_update() const {
    return train::passes_per_update(config_.train,
                                    static_cast<std::size_t>(plan::num_passes(of_run())));
  }

 private:
  const plan::RunPlanConfig& config_;
  DataConfig data_;
  models::BuiltModel built_;
};

std::optional<PlannedData> data_for(const config::Loaded<plan::RunPlanConfig>& loaded) {
  return std::optional<PlannedData>(std::in_place, loaded);
}
std::optional<PlannedData> data_for(const config::Loaded<plan::PlanConfig>&) {
  throw ConfigError(
      "plan: a model that exists only as sizes has no data; say --batch, for example --batch "
      "2x4096");
}

bool names_data(const plan::RunPlanConfig& config) { return !config.data.is_null(); }
bool names_data(const plan::PlanConfig&) { return false; }

// What is planned, on what: the answer to all options but the last ones.
struct Question {
  plan::PlanSubject subject;
  plan::Machine machine;
  plan::BatchParts batch;                  // of a pass
  std::optional<plan::DataSample> sample;  // instead
  std::optional<plan::AutoAnswer> chosen;  // by strategy.auto
  std::string chosen_for;
};

plan::RunPlace place_on(const plan::Machine& machine, int world_size) {
  return {.machine = machine, .memory = machine.memory.bytes, .world_size = world_size};
}

// With strategy.auto, what floe train would choose on this machine.
void choose(Question& question, const plan::Passes& passes) {
  const plan::AutoQuestion asked = plan::question_of(
      question.subject, passes, place_on(question.machine, question.subject.world_size));
  question.chosen = plan::answer(asked);
  question.chosen_for = asked.words;
  question.subject.strategy =
      plan::with_choice(plan::without_choice(question.subject.strategy), question.chosen->strategy);
  if (question.batch.empty() && !question.sample) question.batch = asked.search.step.batch;
}

template <class Config>
Question question_of(const config::Loaded<Config>& loaded, const plan::Machine& machine,
                     const Options& options) {
  Question question{.subject = subject_of(loaded.config), .machine = machine};
  plan::PlanSubject& subject = question.subject;
  const bool automatic = subject.strategy.automatic.has_value();
  require<ConfigError>(
      !automatic || !options.has("--worlds"),
      "plan: --worlds plans one strategy on many numbers of ranks, and "
      "strategy.auto takes one for each; name it, for example strategy=full_shard");
  if (automatic) plan::refuse_decided_keys(loaded.values);
  if (const auto batch = options.value("--batch")) {
    question.batch = plan::parse_batch(*batch);
    if (automatic && !options.has("--best")) choose(question, {question.batch});
    return question;
  }
  require<ConfigError>(options.has("--data") || (automatic && names_data(loaded.config)),
                       "plan: --gpu needs --batch, for example --batch 64x32x1,32x256x6, or --data "
                       "for batches of the configuration's own data");
  const std::optional<PlannedData> data = data_for(loaded);
  subject.passes_per_update = data->passes_per_update();
  if (options.has("--data"))
    question.sample = plan::read_sample(data->of_run(),
                                        options.integer("--batches", kBatchesLookedAt, 1, 100'000));
  if (automatic && !options.has("--best")) choose(question, plan::largest_passes(data->of_run()));
  return question;
}

void show_best(const Question& question, const Options& options) {
  const auto memory = options.value("--memory");
  plan::SearchSettings search{.step = {question.machine, question.batch}};
  search.budget = memory ? parse_bytes(*memory) : question.machine.memory.bytes;
  nlohmann::ordered_json of_data;
  std::string text;
  if (question.sample) {
    plan::PlanSubject as_configured = question.subject;
    if (as_configured.strategy.automatic)
      as_configured.strategy = plan::without_choice(as_configured.strategy);
    const plan::DataPlan data = plan::plan_data(plan::make_report(std::move(as_configured)),
                                                question.machine, *question.sample);
    search.step.batch = data.typical;
    search.largest = data.largest;
    of_data = plan::to_json(data);
    text = str(plan::to_text(data),
               "\nAs configured. Of the strategies below, the worst batch fits and a mean one is "
               "timed.\n");
  }
  const plan::Best best = plan::find_best(question.subject, search);
  nlohmann::ordered_json json = plan::to_json(best);
  if (question.sample) json["data"] = std::move(of_data);
  print(options, json, text + plan::to_text(best));
}

void show_worlds(const Question& question, const Options& options) {
  const plan::Worlds worlds =
      plan::plan_worlds(question.subject, {question.machine, question.batch},
                        plan::parse_worlds(*options.value("--worlds")));
  if (const auto page = options.value("--html"))
    write_file_atomically(*page, plan::to_html(worlds));
  print(options, plan::to_json(worlds), plan::to_text(worlds));
}

void show_step(Question question, const Options& options) {
  const plan::PlanReport report = plan::make_report(std::move(question.subject));
  nlohmann::ordered_json json = plan::to_json(report);
  std::string text;
  if (question.chosen) {
    text = str(question.chosen->sentence, "\n\n");
    json["auto"] = {{"words", question.chosen->words},
                    {"chosen_for", question.chosen_for},
                    {"sentence", question.chosen->sentence},
                    {"yaml", question.chosen->yaml}};
  }
  text += plan::to_text(report);
  if (question.sample) {
    const plan::DataPlan data = plan::plan_data(report, question.machine, *question.sample);
    json["data"] = plan::to_json(data);
    text += "\n" + plan::to_text(data);
  } else {
    const plan::StepReport step = plan::plan_step(report, {question.machine, question.batch});
    json["step"] = plan::to_json(report, step);
    text += "\n" + plan::to_text(report, step);
  }
  print(options, json, text);
}

template <class Config>
Exit show(config::Loaded<Config> loaded, const Options& options) {
  if (options.has("--print-config")) {
    std::cout << config::print_config(loaded.values);
    return Exit::done;
  }
  check_options(options);
  const auto machine = machine_of(options);
  if (!machine) {
    const plan::PlanReport report = plan::make_report(subject_of(loaded.config));
    print(options, plan::to_json(report), plan::to_text(report));
    return Exit::done;
  }
  apply_nodes(loaded.config, options, *machine);
  Question question = question_of(loaded, *machine, options);
  if (options.has("--best"))
    show_best(question, options);
  else if (options.has("--worlds"))
    show_worlds(question, options);
  else
    show_step(std::move(question), options);
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
without a device and a simulation of the machine; with --data for batches of the run's own data.
With strategy=auto the plan is that of the strategy which floe train would choose.

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
            {"--data", "",
             "instead of --batch: the configuration's own data, whose first batches are read; "
             "mean, "
             "99th percentile and worst"},
            {"--batches", "N", str("that --data reads (", kBatchesLookedAt, ")")},
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
  floe plan my.yaml world=64 --gpu h200 --data
  floe plan my.yaml world=64 --gpu h200 --batch 64x32x1,32x256x6 --best --memory 80GiB
  floe plan my.yaml world=64 --gpu h200 strategy=auto
  floe plan my.yaml --gpu h100 --inter 200Gb/s --batch 2x4096 --worlds 8..1024 --html worlds.html
)",
    .words = "PATH",
    .keys = plan_keys,
    .run = run_plan,
};

}  // namespace floe::cli
