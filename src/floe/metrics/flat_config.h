// A resolved configuration as one list of settings, for readers that have no notion of nesting.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace floe::metrics {

// {"train": {"lr": 1, "betas": [1, 2]}} -> {"train.lr", 1}, {"train.betas", [1, 2]}. Lists stay whole.
std::vector<std::pair<std::string, nlohmann::json>> flat_config(const nlohmann::json& config);

}  // namespace floe::metrics
