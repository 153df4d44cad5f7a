// Whether all ranks were started for the same run: with the same configuration, on the same files.
#pragma once

#include <future>
#include <vector>

#include "floe/comm/world.h"
#include "floe/config/load.h"
#include "floe/train/run_config.h"

namespace floe::train {

// Collective: throws ConfigError that names the first key whose value is not the same on all ranks,
// with both values and ranks. What may differ from rank to rank is left out.
void require_same_config(const config::Loaded<RunConfig>& loaded, comm::World& world);

// The files of the model, of which every host may have a copy of its own. One rank of each host
// looks at them: at once at their sizes and some of their bytes, then, beside the first steps, at
// all of them. With one host there is nothing to compare.
class ModelFilesCheck {
 public:
  // Collective: throws ConfigError that names a file which is not the same on all hosts.
  ModelFilesCheck(const models::ModelConfig& model, comm::World& world);

  // Collective: the same for every byte. Waits until all have been read. Later calls return at
  // once.
  void compare_all();

 private:
  comm::World& world_;
  bool done_ = false;
  std::future<std::vector<comm::NamedText>> all_;  // of a rank that looks
};

}  // namespace floe::train
