#include "floe/cli/auto_strategy.h"

#include <ATen/DeviceAccelerator.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "floe/config/yaml.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/core/str.h"
#include "floe/io/file/file.h"
#include "floe/observe/diagnostics/arithmetic.h"
#include "floe/plan/calibrate/device_rates.h"
#include "floe/plan/step/best.h"
#include "floe/schema/schema.h"
#include "floe/schema/value.h"
#include "floe/starter/machine.h"

namespace floe::cli {
namespace {

// What the run's last start has chosen, if that can be read.
std::optional<StrategyConfig> strategy_of_earlier_start(const train::RunSection& run) {
  const std::string path = run.folder() + "/config.yaml";
  if (run.resume == "never" || !path_exists(path)) return std::nullopt;
  try {
    const config::Value tree = config::read_yaml(path);
    const config::Value* strategy = tree.at("strategy");
    if (strategy) return config::bind<StrategyConfig>(*strategy);
  } catch (const Error&) {
    // Then there is nothing to keep.
  }
  return std::nullopt;
}

struct Decision {
  StrategyConfig strategy;
  std::string question;
};

// Of rank 0.
Decision decide(const config::Loaded<train::RunConfig>& loaded, const comm::World& world) {
  const train::RunConfig& config = loaded.config;
  plan::refuse_decided_keys(loaded.values);
  const plan::AutoQuestion question =
      plan::question_of(config, place_of(world, *config.strategy.automatic));
  std::optional<StrategyConfig> before;
  if (config.strategy.automatic->chosen_for)
    before = config.strategy;
  else
    before = strategy_of_earlier_start(config.run);
  if (before && plan::answers(*before, question)) {
    log::info("strategy.auto keeps ", plan::words_of(*before, world.size()),
              ", which it chose for ", question.words);
    return {*before, question.words};
  }
  if (before && before->automatic && before->automatic->chosen_for)
    log::info("strategy.auto chooses again: it had chosen for ", *before->automatic->chosen_for,
              ", and this is ", question.words);
  const plan::AutoAnswer found = plan::answer(question);
  log::info(found.sentence);
  return {found.strategy, question.words};
}

using Json = nlohmann::json;

constexpr const char* kKey = "chosen strategy";
// Of a rank that has heard why there is none.
std::string heard_by(int rank) { return str("no strategy, heard by ", rank); }

std::string told(const Decision& decision) {
  const config::Value block =
      config::schema_of<StrategyConfig>().write(decision.strategy, config::Write::all);
  return Json{{"strategy", config::to_json(block)}, {"question", decision.question}}.dump();
}

Decision understood(const Json& told) {
  const config::Value block =
      config::parse_inline_yaml(told.at("strategy").dump(), config::Origin::of_argument("rank 0"));
  return {config::bind<StrategyConfig>(block), told.at("question").get<std::string>()};
}

}  // namespace

plan::RunPlace place_of(const comm::World& world, const AutoStrategyConfig& asked) {
  plan::RunPlace place;
  const c10::Device device = world.device();
  place.world_size = world.size();
  place.is_cpu = !device.is_cuda();
  if (place.is_cpu) {
    const starter::Machine host = starter::look_at_machine();
    place.memory = host.memory / world.ranks_on_host();
    place.machine =
        plan::machine_of_rank_on_cores(static_cast<double>(host.cores) / world.ranks_on_host());
  } else {
    const auto [free, total] = at::accelerator::getMemoryInfo(device.index());
    place.memory = static_cast<std::int64_t>(total) / world.ranks_on_device();
    place.machine =
        plan::machine_of_gpu(diagnostics::device_name(device), plan::has_fp8_products(device));
  }
  // Hosts of one kind differ by some pages, which make no other question.
  constexpr std::int64_t kGrain = 256 * kMiB;
  if (place.memory > kGrain) place.memory -= place.memory % kGrain;
  if (asked.machine) {
    place.machine = plan::find_machine(*asked.machine, "strategy.auto.machine");
    // A machine of cores is planned with all of its ranks.
    if (place.machine.of_cores()) place.memory *= world.ranks_on_host();
  }
  place.machine.memory = {place.memory};
  place.machine.gpus_per_node = world.ranks_on_host();
  return place;
}

config::Loaded<train::RunConfig> choose_strategy(const config::Loaded<train::RunConfig>& loaded,
                                                 comm::World& world) {
  const bool asked = loaded.config.strategy.automatic.has_value();
  if (world.rank() != 0) {
    if (!asked) return loaded;
    const Json said = Json::parse(world.await(kKey, [] {}));
    // Rank 0 has another configuration, which the trainer will say.
    if (said.empty()) return loaded;
    if (said.contains("error")) {
      world.publish(heard_by(world.rank()), "");
      throw Error(said.at("error").get<std::string>(), static_cast<Exit>(said.at("exit")));
    }
    const Decision decision = understood(said);
    return plan::with_choice(loaded, decision.strategy, decision.question);
  }
  if (!asked) {
    if (world.size() > 1) world.publish(kKey, "{}");
    return loaded;
  }
  try {
    const Decision decision = decide(loaded, world);
    world.publish(kKey, told(decision));
    return plan::with_choice(loaded, decision.strategy, decision.question);
  } catch (const Error& error) {
    world.publish(kKey,
                  Json{{"error", error.what()}, {"exit", static_cast<int>(error.exit())}}.dump(
                      -1, ' ', false, Json::error_handler_t::replace));
    // The store ends with this rank: others would then say that it is gone, instead of why.
    constexpr std::chrono::seconds kPatience(10);
    for (int rank = 1; rank < world.size(); ++rank)
      if (!world.lookup(heard_by(rank), kPatience)) break;
    throw;
  }
}

}  // namespace floe::cli
