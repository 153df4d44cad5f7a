// Run folders: how far the run came, and its checkpoints.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace floe::cli {

// `run`, the folder; `step`, `planned_steps` and `metrics` (the last losses) as far as the run's files
// tell them; `checkpoints`, names, newest first. For facts_text().
nlohmann::ordered_json run_facts(const std::string& run_folder);

}  // namespace floe::cli
