// Requests on the command line, of a file or a data set: `floe generate --requests` and `floe
// score`.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "floe/cli/loaded_model.h"
#include "floe/requests/shard_requests.h"
#include "floe/requests/work.h"

namespace floe::cli {

OptionRow batch_tokens_option();
std::int64_t batch_tokens_of(const Options& options);

// The rows of a command that takes such a file: --output, --force, --batch-tokens, --sharded.
std::vector<OptionRow> requests_options();

// --shards LIST, with what is asked of each sample. `with_candidates`: --candidate as well.
std::vector<OptionRow> shards_options(bool with_candidates);
// Throws ConfigError for options that are missing; nothing without --shards.
std::optional<requests::ShardTemplate> shards_of(const std::string& command, const Options& options,
                                                 bool with_candidates);

struct RequestsJob {
  const Command& command;
  std::string model;
  std::string file;                               // of requests
  std::optional<requests::ShardTemplate> shards;  // instead: one for each sample of a data set
  Args changes;
  // Once the model is there: what requests must have, and what is done with them.
  std::function<requests::RequestNeeds(const LoadedModel&)> needs;
  std::function<requests::Work(const LoadedModel&, const requests::RunRequests&)> work;
};

// Alone, or as a rank of a job: each does its share, with the whole model or with one
// that is sliced.
Exit run_requests_job(const RequestsJob& job, const Options& options);

}  // namespace floe::cli
