// Which parameters the checkpoints of a run hold: see Note [What a checkpoint holds].
#pragma once

#include <set>
#include <string>
#include <vector>

#include "floe/checkpoint/checkpointer.h"
#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/load/saved_state.h"
#include "floe/checkpoint/run_state.h"
#include "floe/shard/plan/plan.h"

namespace floe::checkpoint {

class HeldParameters {
 public:
  // Fills `kept` and `rows` of the run. Both outlive this. Throws ConfigError when something that
  // must be held cannot be.
  HeldParameters(RunState& run, const CheckpointerOptions& options);

  // What a manifest says about them.
  Holdings holdings() const;
  // The tensors of checkpoint_N.pt.
  std::vector<FileTensor> file_tensors() const;

  // From now on what the checkpoint holds that the run continues from. Throws ConfigError when it
  // cannot be held, or leaves a parameter without a value. Rank 0 logs what ends here.
  void take_over(const SavedState& saved);

 private:
  void keep(const std::set<std::string>& names);
  bool holds_some_of(const FileTensor& tensor) const;
  // Which of the checkpoint's state this run has no place for.
  void log_what_ends(const SavedState& saved) const;

  RunState& run_;
  const CheckpointerOptions& options_;
  std::set<std::string> trained_;  // by some set
  std::set<std::string> frozen_;   // Holdings::frozen
};

// The file's tensors of a model whose names are those of its parameters.
std::vector<FileTensor> own_file_tensors(const shard::ShardPlan& plan);

}  // namespace floe::checkpoint
