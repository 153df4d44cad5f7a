// RUN/status.json: how far a run is and how it ended, for whoever looks from outside.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace floe::observe {

// Times are unix times; what is not known yet is not there.
struct RunStatus {
  enum class State { starting, training, done, stopped, failed };

  State state = State::starting;
  std::string version;
  std::string host;  // of rank 0
  std::int64_t pid = 0;
  double started_s = 0, updated_s = 0;
  std::int64_t restarts = 0;       // see restarts_so_far()
  std::vector<std::string> ranks;  // where they are, a line for each
  std::int64_t step = 0, total_steps = 0;
  std::optional<double> stepped_s;                     // when the last step was done
  std::optional<double> seconds_per_step;              // of the last step
  std::string phase;                                   // of several
  std::vector<std::pair<std::string, double>> losses;  // of the last step, by source
  std::string slowest;                                 // rank of the last step, in words
  std::string checkpoint;                              // the newest that this start has saved
  std::optional<double> saved_s;
  // What the ranks are doing, a line for each, where there has been no step for some time.
  std::vector<std::string> doing;
  std::optional<int> exit_code;  // of a run that has ended
  std::string reason;            // why it has
};

// How often launcher (floe launch, torchrun) and scheduler (SLURM) have started this job again, by
// the environment of this process.
std::int64_t restarts_so_far();

// "starting", "training", "done", "stopped", "failed"
std::string_view name_of(RunStatus::State state);

nlohmann::ordered_json to_json(const RunStatus& status);

// Of the run in this folder; nothing where there is no such file. Throws DataError for one that is
// no status.
std::optional<RunStatus> read_run_status(const std::string& folder);
// Replaces it as a whole. Throws Error when it cannot be written.
void write_run_status(const std::string& folder, RunStatus status);

}  // namespace floe::observe
