// Models in words: what a YAML describes.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "floe/cli/used_model.h"

namespace floe::cli {

// The kind of model, its files and sizes, what trains, and what is in no file. For facts_text(). Reads
// headers only.
nlohmann::ordered_json model_facts(const UsedModel& used);

}  // namespace floe::cli
