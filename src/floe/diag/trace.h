// A timeline in the format of chrome://tracing and ui.perfetto.dev.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "floe/diag/timeline.h"

namespace floe::diag {

// Units, waits and steps nest on one track; collectives, which overlap, are asynchronous events.
nlohmann::ordered_json trace_json(const Timeline& timeline, int rank);

// RUN/trace/rank_R.json; makes the folder.
std::string trace_path(const std::string& run_folder, int rank);
void write_trace(const Timeline& timeline, const std::string& run_folder, int rank);

}  // namespace floe::diag
