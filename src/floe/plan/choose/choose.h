// `strategy: auto`: which strategy a run takes, by the search of step/best.h.
//
// Note [Auto]
// The question is what the answer depends on: model, what trains, optimizer, batch, ranks, machine
// and memory. Its text, with a digest of all that, is written beside the answer into the run's
// config.yaml (strategy.auto.chosen_for). A run that starts again with the same question takes the
// answer that it had; with another one (other ranks, a smaller GPU) it asks again. The batch is
// never cut: other passes would be other means of the loss, and so another training.
#pragma once

#include <cstdint>
#include <string>

#include "floe/config/load.h"
#include "floe/plan/choose/batches.h"
#include "floe/plan/step/best.h"
#include "floe/train/run_config.h"

namespace floe::plan {

// What a run is on.
struct RunPlace {
  Machine machine;          // whose nodes have as many GPUs as hosts have ranks
  std::int64_t memory = 0;  // of a rank
  bool is_cpu = false;      // nothing leaves the device, and times are rough
  int world_size = 1;
};

struct AutoQuestion {
  PlanSubject subject;
  SearchSettings search;
  std::string words;  // chosen_for
};

struct AutoAnswer {
  StrategyConfig strategy;  // that decides what a choice does
  std::string words;        // "full_shard, frozen resident, nothing recomputed"
  std::string yaml;         // its keys
  std::string sentence;     // what was chosen, and why
};

// For a plan whose batch is known. Throws ConfigError for several phases.
AutoQuestion question_of(PlanSubject subject, const Passes& passes, const RunPlace& place);
// Of a run, with the largest batch that its configuration allows. Builds the model without memory.
AutoQuestion question_of(const train::RunConfig& config, const RunPlace& place);

// Throws ConfigError, with what is lacking, where nothing fits.
AutoAnswer answer(const AutoQuestion& question);

// Whether this strategy, of an earlier start, was chosen for the same question.
bool answers(const StrategyConfig& strategy, const AutoQuestion& question);
// Without what a choice decides: as far as a question depends on it.
StrategyConfig without_choice(StrategyConfig strategy);
// This run's strategy with what the other one decides.
StrategyConfig with_choice(const StrategyConfig& own, const StrategyConfig& chosen);

// Throws ConfigError when a key that the choice decides is set beside strategy.auto, and not by the
// choice that is written with it.
void refuse_decided_keys(const config::Value& values);
// The configuration with what was chosen for that question, which says so where its
// origin is shown.
config::Loaded<train::RunConfig> with_choice(const config::Loaded<train::RunConfig>& loaded,
                                             const StrategyConfig& chosen,
                                             const std::string& question);

}  // namespace floe::plan
