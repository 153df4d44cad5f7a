#include "floe/checkpoint/folder/rank_states.h"

#include <utility>

#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/save/rank_files.h"
#include "floe/core/error.h"

namespace floe::checkpoint {

RankStates::RankStates(std::vector<nlohmann::json> held)
    : world_size_(static_cast<int>(held.size())), held_(std::move(held)) {
  for (std::size_t rank = 0; rank < held_.size(); ++rank)
    if (held_[rank].is_null()) missing_.insert(static_cast<int>(rank));
}

RankStates::RankStates(std::string folder, int world_size, std::set<int> missing)
    : world_size_(world_size), missing_(std::move(missing)), folder_(std::move(folder)) {}

nlohmann::json RankStates::of(int rank) const {
  require<CheckpointError>(rank >= 0 && rank < world_size_, "there is no state of rank ", rank,
                           " in a checkpoint of ", world_size_, " ranks");
  if (missing_.contains(rank)) return nullptr;
  if (!lie_apart()) return held_[static_cast<std::size_t>(rank)];
  return read_rank_manifest(folder_, rank).header.state;
}

std::vector<nlohmann::json> RankStates::all() const {
  if (!lie_apart()) return held_;
  const std::string path = str(folder_, "/", kStatesFile);
  const nlohmann::json content = read_sealed(path);
  return reading(path, [&] {
    auto states = content.at("states").get<std::vector<nlohmann::json>>();
    require<CheckpointError>(std::cmp_equal(states.size(), world_size_), "'", path,
                             "' has the states of ", states.size(), " ranks, but there were ",
                             world_size_);
    return states;
  });
}

void write_states(const std::string& folder, const std::vector<nlohmann::json>& states) {
  write_sealed(str(folder, "/", kStatesFile), {{"format", 1}, {"states", states}});
}

}  // namespace floe::checkpoint
