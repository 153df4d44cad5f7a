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

// Collective: tries them in rank 0's order until one passes `validate` on all ranks. `validate` throws
// Error when the checkpoint cannot be used.
Choice choose(const std::vector<std::string>& candidates,
              const std::function<void(const std::string&)>& validate, Meeting& meeting);

}  // namespace floe::checkpoint
