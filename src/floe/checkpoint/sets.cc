#include "floe/checkpoint/sets.h"

#include <algorithm>
#include <set>

#include "floe/core/error.h"

namespace floe::checkpoint {
namespace {

bool has_state(const optim::Optimizer& optimizer, std::size_t num_groups) {
  for (std::size_t g = 0; g < num_groups; ++g)
    if (optimizer.has_state(g)) return true;
  return false;
}

}  // namespace

void check_names(const std::vector<SetOptimizer>& optimizers) {
  std::set<std::string> names;
  for (const SetOptimizer& set : optimizers)
    require<ConfigError>(
        names.insert(set.name).second && (optimizers.size() == 1 || !set.name.empty()),
        "the optimizers of ", optimizers.size(),
        " sets need different names in a checkpoint; found '", set.name, "'");
}

std::vector<SavedSet> describe(const std::vector<SetOptimizer>& optimizers) {
  std::vector<SavedSet> sets;
  for (const SetOptimizer& set : optimizers) {
    if (set.name.empty()) continue;
    const shard::Engine& engine = set.optimizer->engine();
    sets.push_back({set.name, engine.active_set() == set.optimizer->set(),
                    has_state(*set.optimizer, engine.trainable_groups().size())});
  }
  return sets;
}

std::string in_words(const std::vector<SavedSet>& sets) {
  std::vector<std::string> words;
  for (const SavedSet& set : sets)
    words.push_back(str(set.name, set.active      ? " (trains now)"
                                  : set.has_state ? ""
                                                  : " (without state)"));
  return words.empty() ? "one set" : join(words, ", ");
}

nlohmann::json to_json(const std::vector<SavedSet>& sets) {
  auto list = nlohmann::json::array();
  for (const SavedSet& set : sets)
    list.push_back({{"name", set.name}, {"active", set.active}, {"has_state", set.has_state}});
  return list;
}

std::vector<SavedSet> sets_from_json(const nlohmann::json& list) {
  std::vector<SavedSet> sets;
  for (const auto& entry : list)
    sets.push_back({entry.at("name"), entry.at("active"), entry.at("has_state")});
  return sets;
}

std::vector<std::string> optimizer_path(const std::string& set) {
  if (set.empty()) return {"optimizer"};
  return {"optimizers", set};
}

std::string setting_name(const std::string& set, std::size_t group, const std::string& key) {
  return str(join(optimizer_path(set), "."), ".param_groups.", group, ".", key);
}

std::optional<StatePlace> state_place(const pickle::Items& path) {
  using pickle::Kind;
  if (!std::all_of(path.begin(), path.end(), [](const auto& part) { return part.is(Kind::text); }))
    return std::nullopt;
  const auto text = [&](std::size_t i) { return path[i].text(); };
  if (path.size() == 4 && text(0) == "optimizer" && text(1) == "state")
    return StatePlace{"", text(2), text(3)};
  if (path.size() == 5 && text(0) == "optimizers" && text(2) == "state")
    return StatePlace{text(1), text(3), text(4)};
  return std::nullopt;
}

}  // namespace floe::checkpoint
