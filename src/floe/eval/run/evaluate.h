// A task, asked of a model: for every number of shots and every seed a trial, whose requests go
// through the module `requests`.
//
// Note [Files of an evaluation]
// FOLDER/TASK/MODEL/shots_4_seed_42.jsonl has the results of a trial's requests, and beside it
// .settings.json what they depend on and .answers.json what was made of them. A trial whose file is
// there is not asked again; one that was interrupted has its parts (Note [Parts]) and goes on.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "floe/comm/world.h"
#include "floe/eval/tasks/results.h"
#include "floe/eval/tasks/samples.h"
#include "floe/generation/generate.h"
#include "floe/models/model_config.h"
#include "floe/requests/run_requests.h"
#include "floe/requests/work.h"

namespace floe::eval {

struct AskedModel {
  requests::ReadyModel ready;
  std::string name;        // as it was named
  std::string folder;      // of its results: a short name without slashes
  std::string checkpoint;  // whose weights these are
  std::string digest;      // of the weights
  std::int64_t step = -1;
  generation::GenerateOptions text;    // what the model's files say of ends
  std::int64_t window = 0;             // tokens that it sees at once; 0: its files do not say
  std::optional<std::int64_t> prefix;  // the token in front of a text
};
// A model without a name, with what its files say.
AskedModel asked_model(const requests::ReadyModel& ready, const models::ModelConfig& config);

struct EvaluateOptions {
  std::string folder;               // of all results; empty: nothing is written
  bool force = false;               // replaces what is there
  nlohmann::ordered_json settings;  // what results depend on beside model and task
  requests::RunRequests how;
};

// What would be asked: of every trial its name and a digest of its requests. Throws ConfigError or
// DataError where there is something wrong with the task or the model cannot be asked.
std::vector<comm::NamedText> trials_of(const TaskData& data, const AskedModel& model);

// Warns where the task follows OpenFlamingo in judging by the wrong picture, or does not follow it.
void warn_of_rules(const TaskData& data, const AskedModel& model);

// Collective: all ranks of the world, with the same values. Scores are found by rank 0; other ranks
// get results without trials, unless nothing is written. Nothing: a signal stopped it. Throws
// ConfigError where there are results of other settings, the first of which is named.
std::optional<std::vector<TaskResult>> evaluate(const TaskData& data, const AskedModel& model,
                                                const EvaluateOptions& options);

}  // namespace floe::eval
