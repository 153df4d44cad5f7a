// A file of requests on the command line: `floe generate --requests` and `floe score`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "floe/cli/loaded_model.h"
#include "floe/requests/work.h"

namespace floe::cli {

// The rows of a command that takes such a file: --output, --force, --batch-tokens.
std::vector<OptionRow> requests_options();

// Of some values of every parameter: models under the same name are told apart by what they are.
std::string weights_digest(const models::BuiltModel& built);

struct RequestsJob {
  const Command& command;
  std::string model, file;
  Args changes;
  // Once the model is there: what requests must have, and what is done with them.
  std::function<requests::RequestNeeds(const LoadedModel&)> needs;
  std::function<requests::Work(const LoadedModel&, const requests::RunRequests&)> work;
};

// Alone, or as a rank of a job: each rank loads the whole model and does its share.
Exit run_requests_job(const RequestsJob& job, const Options& options);

}  // namespace floe::cli
