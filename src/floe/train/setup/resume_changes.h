// What a resumed run does differently from the one that saved its checkpoint.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "floe/train/run_config.h"

namespace floe::train {

// A table as lines: every key whose value differs between the resolved configurations, the old and the
// new value, and whether that is harmless, takes effect, or is refused. Empty when nothing differs. Keys
// that one of the two does not know (another version of floe) are left out.
std::vector<std::string> resume_changes(const nlohmann::json& before, const nlohmann::json& now,
                                        int world_before, int world_now,
                                        RunSection::ResumeData data);

}  // namespace floe::train
