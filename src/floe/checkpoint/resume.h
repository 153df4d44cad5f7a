// Which checkpoint a run continues from.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "floe/checkpoint/meeting.h"

namespace floe::checkpoint {

struct Choice {
  std::string path;                      // empty: none
  std::vector<std::string> passed_over;  // a sentence for each one before it
};

// Checkpoints of a run to try, best first: the highest step, `on_exception` before others of its step.
// A manifest that cannot be read becomes a sentence in `passed_over`.
std::vector<std::string> candidates(const std::string& folder,
                                    std::vector<std::string>& passed_over);

// Whether the path is of a run, with checkpoints below it.
bool is_run_folder(const std::string& path);

// Note [Where a run began]
// The state that a run saves says which path it began from (kBeganFrom). Once a run has checkpoints that
// began from the path it is given, these are its own and go before it, whatever is there by now: a run
// that trains on may have moved far beyond.
constexpr const char* kBeganFrom = "began_from";

// Checkpoints to try for a run that begins from `path` (a checkpoint of anybody, or a run folder) and
// has its own in `folder`: its own first, if they began there or are not older, so that a start after
// the first one goes on instead of beginning again.
std::vector<std::string> candidates_from(const std::string& path, const std::string& folder,
                                         std::vector<std::string>& passed_over);

// Collective: tries them in rank 0's order until one passes `validate` on all ranks. `validate` throws
// Error when the checkpoint cannot be used.
Choice choose(const std::vector<std::string>& candidates,
              const std::function<void(const std::string&)>& validate, Meeting& meeting);

}  // namespace floe::checkpoint
