// Runs all requests of a file or list through a model, in batches, each rank its share.
//
// Note [Batches of requests]
// Which requests are computed together follows from the texts, the budget and the number of ranks
// alone, not from what is done already: a run that was killed and started again computes the same
// batches, and so the same numbers to the last bit. Pictures of the next batch are read while one
// is computed.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "floe/generation/batching.h"
#include "floe/generation/lockstep.h"
#include "floe/requests/output.h"
#include "floe/requests/request.h"

namespace floe::requests {

struct Work {
  std::string name;  // of the command, for the log
  std::function<generation::RequestSize(const Request&)> size;
  // A record for each of some requests, which have no problem but may have candidates without
  // tokens. `request`, `id`, and what `problem` says are added.
  std::function<std::vector<Record>(std::vector<Request>&)> compute;
  generation::Lockstep* lockstep = nullptr;  // which `compute` keeps; null: none
};

struct RunRequests {
  std::int64_t batch_tokens = generation::kBatchTokens;  // Note [Token budget]
  comm::World* world = nullptr;                          // null: one rank
  const std::atomic<bool>* stop = nullptr;               // ends the run after the batch under way
  bool quiet = false;                                    // logs nothing
};

// Collective: all ranks of the world, with the same requests. Logs progress and a summary,
// unless it is to be quiet.
Summary run_requests(const RequestSource& file, const Work& work, Output& output,
                     const RunRequests& options);

}  // namespace floe::requests
