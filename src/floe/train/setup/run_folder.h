// The folder of a run, run.dir/run.name.
#pragma once

#include <string>

#include "floe/comm/world.h"
#include "floe/train/run_config.h"

namespace floe::train {

class RunFolder {
 public:
  // Collective. Makes the folder, locks it against a second run and lets this rank's log go to
  // logs/rank_R.log as well. With run.resume=never an earlier run that is there moves aside to
  // NAME.1, NAME.2, …, unless it is of this job (Note [Started again]). Throws ConfigError when
  // another run works in it or it cannot be written, Error when the disk fails.
  RunFolder(const RunConfig& config, comm::World& world);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  // Where the run is to go on although run.resume is never.
  bool goes_on() const { return goes_on_; }
  // Rank 0, when the run is known to begin: a run that cannot leaves the earlier one's file alone.
  void write_config(const std::string& config_yaml) const;

 private:
  void begin_anew();

  std::string path_;
  bool goes_on_ = false;
  int lock_ = -1;  // rank 0
};

}  // namespace floe::train
