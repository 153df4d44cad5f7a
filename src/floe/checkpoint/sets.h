// Sets of parameters that train in turn, as a checkpoint knows them: each has an optimizer.
//
// Note [Names of optimizers]
// A run with one set keeps its optimizer under `optimizer`, as PyTorch's tools have it; one with
// several under `optimizers.NAME`. State belongs to (set, parameter), so a parameter may be in
// several.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "floe/io/torch_file/pickle.h"
#include "floe/optim/optimizer.h"

namespace floe::checkpoint {

// The optimizer of one set of the engine, under the set's name: "" when there is only one.
struct SetOptimizer {
  std::string name;
  optim::Optimizer* optimizer = nullptr;
};

// Throws ConfigError for names that would not keep several sets apart.
void check_names(const std::vector<SetOptimizer>& optimizers);

// What a checkpoint says about a set.
struct SavedSet {
  std::string name;
  bool active = false;     // it was the one that trained
  bool has_state = false;  // false: it had not trained yet, or its state was dropped
  bool operator==(const SavedSet&) const = default;
};

// Of a run whose sets have names; empty for others.
std::vector<SavedSet> describe(const std::vector<SetOptimizer>& optimizers);
// "a (trains now), b (without state)"
std::string in_words(const std::vector<SavedSet>& sets);

nlohmann::json to_json(const std::vector<SavedSet>& sets);
// What write_manifest has put there. Throws nlohmann::json::exception for anything else.
std::vector<SavedSet> sets_from_json(const nlohmann::json& list);

// Where a set's optimizer stands: {"optimizer"} or {"optimizers", NAME}.
std::vector<std::string> optimizer_path(const std::string& set);

// The flat name of a setting of a parameter group: "optimizers.a.param_groups.0.lr".
std::string setting_name(const std::string& set, std::size_t group, const std::string& key);

// What a path in a checkpoint is of, if it is of an optimizer's state.
struct StatePlace {
  std::string set, parameter, key;
};
std::optional<StatePlace> state_place(const pickle::Items& path);

}  // namespace floe::checkpoint
