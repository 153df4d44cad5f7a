#include "floe/plan/choose/choose.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/str.h"
#include "floe/schema/schema.h"
#include "floe/schema/value.h"

namespace floe::plan {
namespace {

// What a choice decides, as keys of the block `strategy:`.
constexpr std::array<std::string_view, 11> kDecided = {
    "sharding",         "hybrid_shard_size",    "frozen.residency",
    "frozen.sharding",  "frozen.memory_budget", "activation_checkpointing",
    "activations.keep", "activations.offload",  "activations.share",
    "cuda_graphs",      "cpu_offload"};

constexpr const char* kOrigin = "strategy.auto";

config::Value* find_key(config::Value& root, std::string_view path) {
  config::Value* value = &root;
  for (const std::string& key : config::split_path(path)) {
    auto* map = value ? value->as<config::Map>() : nullptr;
    value = map ? map->find(key) : nullptr;
  }
  return value;
}

// By a file or the command line; `~key` only takes away what a file has set.
bool is_set(const config::Origin& origin) {
  const std::string text = origin.text();
  return text != config::Origin::of_default().text() && text.find("'~") == std::string::npos;
}

template <class T>
std::string json_of(const T& object) {
  return config::to_json(config::schema_of<T>().write(object, config::Write::all)).dump();
}

// Everything that the search looks at.
std::string digest_of(const PlanReport& report, const SearchSettings& search) {
  const PlanSubject& subject = report.subject;
  Hash64 hash;
  for (const shard::PlannedParameter& parameter : report.plan.parameters)
    hash.add(parameter.name)
        .add(static_cast<std::uint64_t>(parameter.numel))
        .add(static_cast<std::uint64_t>(parameter.trainable));
  for (const int number : {subject.world_size, subject.passes_per_update,
                           subject.values_per_element, int{subject.averages}})
    hash.add(static_cast<std::uint64_t>(number));
  hash.add(json_of(subject.strategy)).add(json_of(search.step.machine));
  for (const BatchPart& part : search.step.batch)
    for (const std::int64_t number :
         {part.sequences, part.tokens, part.images, part.labels, part.source})
      hash.add(static_cast<std::uint64_t>(number));
  hash.add(static_cast<std::uint64_t>(search.budget));
  hash.add(static_cast<std::uint64_t>(search.may_offload));
  char text[17];
  std::snprintf(text, sizeof text, "%08llx",
                static_cast<unsigned long long>(hash.value() & 0xffffffffULL));
  return text;
}

// Of several passes the one that needs most memory.
const BatchParts& neediest(const PlanSubject& subject, const Passes& passes,
                           const Machine& machine) {
  if (passes.size() == 1) return passes.front();
  const PlanReport report = make_report(subject);
  const BatchParts* most = nullptr;
  std::int64_t needed = 0;
  for (const BatchParts& parts : passes) {
    const std::int64_t bytes = plan_step(report, {machine, parts}).needed();
    if (!most || bytes > needed) most = &parts, needed = bytes;
  }
  return *most;
}

}  // namespace

AutoQuestion question_of(PlanSubject subject, const Passes& passes, const RunPlace& place) {
  require<ConfigError>(subject.sets.size() < 2,
                       "strategy.auto cannot choose for a run with several phases, whose steps "
                       "differ; name a strategy, such as strategy=full_shard");
  require(!passes.empty(), "a batch has at least one pass");
  const std::optional<AutoStrategyConfig> asked = subject.strategy.automatic;
  AutoQuestion question;
  subject.strategy = without_choice(subject.strategy);
  subject.world_size = place.world_size;
  SearchSettings& search = question.search;
  search.step = {place.machine, neediest(subject, passes, place.machine)};
  search.budget = asked && asked->memory ? asked->memory->bytes : place.memory;
  search.may_cut = false;
  search.may_offload = !place.is_cpu;
  const PlanReport report = make_report(subject);
  question.subject = std::move(subject);
  question.words = str(counted(place.world_size, "rank"), " on ", place.machine.name, ", ",
                       format_bytes(search.budget), " each, batch ", text_of(search.step.batch),
                       " (", digest_of(report, search), ")");
  return question;
}

AutoQuestion question_of(const train::RunConfig& config, const RunPlace& place) {
  RunPlanConfig planned;
  planned.model = config.model;
  planned.train = config.train;
  planned.strategy = config.strategy;
  planned.phases = config.phases;
  planned.world = place.world_size;
  const models::BuiltModel built = models::build_model(config.model, config.run.seed);
  const DataOfRun data{.data = config.data,
                       .built = built,
                       .packed = config.train.packed,
                       .seed = config.run.seed,
                       .world_size = place.world_size};
  PlanSubject subject = subject_of(planned);
  subject.passes_per_update =
      train::passes_per_update(config.train, static_cast<std::size_t>(num_passes(data)));
  return question_of(std::move(subject), largest_passes(data), place);
}

AutoAnswer answer(const AutoQuestion& question) {
  const Best best = find_best(question.subject, question.search);
  require<ConfigError>(
      !best.choices.empty(), "strategy.auto finds nothing that fits: of ",
      format_bytes(best.budget), " for each rank, the least needs about ",
      format_bytes(best.least_needed), " with a batch of ", text_of(question.search.step.batch),
      "; take more ranks, or smaller batches and more of train.gradient_accumulation");
  const Choice& first = best.choices.front();
  AutoAnswer found;
  found.strategy = with_choice(question.subject.strategy, first.strategy);
  found.words = first.words;
  found.yaml = yaml_of(first);
  found.sentence = str("strategy.auto takes ", first.words, ": ", reason_of(first, best.budget),
                       "; planned for ", question.words, ", the fastest of ",
                       counted(best.num_candidates, "candidate"));
  if (best.choices.size() > 1) {
    const double slower = best.choices[1].step.time.seconds / first.step.time.seconds - 1;
    char text[32] = "as fast";
    if (slower >= 0.002) std::snprintf(text, sizeof text, "%+.1f%%", 100 * slower);
    found.sentence += str(", before ", best.choices[1].words, " (", text, ")");
  }
  return found;
}

bool answers(const StrategyConfig& strategy, const AutoQuestion& question) {
  return strategy.automatic && strategy.automatic->chosen_for == question.words;
}

StrategyConfig without_choice(StrategyConfig strategy) {
  strategy.automatic.reset();
  return with_choice(strategy, StrategyConfig());
}

StrategyConfig with_choice(const StrategyConfig& own, const StrategyConfig& chosen) {
  StrategyConfig strategy = own;
  strategy.sharding = chosen.sharding;
  strategy.hybrid_shard_size = chosen.hybrid_shard_size;
  strategy.frozen.residency = chosen.frozen.residency;
  strategy.frozen.sharding = chosen.frozen.sharding;
  strategy.frozen.memory_budget = chosen.frozen.memory_budget;
  strategy.activation_checkpointing = chosen.activation_checkpointing;
  strategy.activations = chosen.activations;
  strategy.cuda_graphs = chosen.cuda_graphs;
  strategy.cpu_offload = chosen.cpu_offload;
  return strategy;
}

void refuse_decided_keys(const config::Value& values) {
  const config::Value* written = values.at("strategy.auto.chosen_for");
  const bool is_written = written && !written->is_null();
  for (const std::string_view key : kDecided) {
    const config::Value* value = values.at(str("strategy.", key));
    if (!value || !is_set(value->origin)) continue;
    const bool of_choice = is_written && value->origin.source && written->origin.source &&
                           *value->origin.source == *written->origin.source;
    require<ConfigError>(of_choice, value->origin.text(), ": strategy.", key,
                         " is what strategy.auto chooses; leave it out (~strategy.", key,
                         "), or turn the choice off (~strategy.auto)");
  }
}

config::Loaded<train::RunConfig> with_choice(const config::Loaded<train::RunConfig>& loaded,
                                             const StrategyConfig& chosen,
                                             const std::string& question) {
  config::Loaded<train::RunConfig> changed = loaded;
  StrategyConfig& strategy = changed.config.strategy;
  strategy = with_choice(strategy, chosen);
  if (!strategy.automatic) strategy.automatic.emplace();
  strategy.automatic->chosen_for = question;
  changed.values = config::schema_of<train::RunConfig>().write(changed.config, config::Write::all);
  config::adopt_origins(changed.values, loaded.values);
  const config::Origin origin{std::make_shared<const std::string>(kOrigin)};
  const auto mark = [&](std::string_view key) {
    if (config::Value* value = find_key(changed.values, str("strategy.", key))) {
      value->origin = origin;
      if (auto* list = value->as<config::List>())
        for (config::Value& item : *list) item.origin = origin;
    }
  };
  for (const std::string_view key : kDecided) mark(key);
  mark("auto.chosen_for");
  config::bind<train::RunConfig>(changed.values);
  return changed;
}

}  // namespace floe::plan
