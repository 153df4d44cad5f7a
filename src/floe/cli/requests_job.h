// A file of requests on the command line: `floe generate --requests` and `floe score`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "floe/cli/loaded_model.h"
#include "floe/requests/work.h"

namespace floe::cli {

// The rows of a command that takes such a file: --output, --force, --batch-tokens, --sharded.
std::vector<OptionRow> requests_options();

struct RequestsJob {
  const Command& command;
  std::string model, file;
  Args changes;
  // Once the model is there: what requests must have, and what is done with them.
  std::function<requests::RequestNeeds(const LoadedModel&)> needs;
  std::function<requests::Work(const LoadedModel&, const requests::RunRequests&)> work;
};

// Alone, or as a rank of a job: each does its share, with the whole model or with one
// that is sliced.
Exit run_requests_job(const RequestsJob& job, const Options& options);

}  // namespace floe::cli
