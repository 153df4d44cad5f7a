// What the ranks of a run saved for themselves: where their loaders stand.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace floe::checkpoint {

// Note [States of ranks]
// A state has tens of kilobytes, so those of a thousand ranks are far more than all the rest that a
// rank has to know of a checkpoint. They lie apart from floe.json: each one in its rank's own file,
// which is all that a rank of the same world needs, and all together in a file of their own, for
// whoever deals the data anew to another number of ranks. Single files (`full`, `trainable`) and
// checkpoints of older versions have them in the manifest.
constexpr const char* kStatesFile = "floe_ranks.json";

class RankStates {
 public:
  // Of nobody.
  RankStates() = default;
  // Null where a rank died before it could save.
  explicit RankStates(std::vector<nlohmann::json> held);
  // In the files of a directory.
  RankStates(std::string folder, int world_size, std::set<int> missing);

  int size() const { return world_size_; }
  bool empty() const { return world_size_ == 0; }
  // Whether every rank has one.
  bool is_whole() const { return missing_.empty(); }
  // The ranks that have none.
  const std::set<int>& missing() const { return missing_; }
  bool lie_apart() const { return !folder_.empty(); }
  // One reads a file, or all of them together another one. Throw CheckpointError for files that are
  // damaged.
  nlohmann::json of(int rank) const;
  std::vector<nlohmann::json> all() const;

 private:
  int world_size_ = 0;
  std::set<int> missing_;
  std::vector<nlohmann::json> held_;
  std::string folder_;  // empty: they are held
};

// Writes the file of all states into the folder, atomically.
void write_states(const std::string& folder, const std::vector<nlohmann::json>& states);

}  // namespace floe::checkpoint
