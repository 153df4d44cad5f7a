// The loss on held-out data.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "floe/data/loader.h"
#include "floe/models/build.h"
#include "floe/shard/engine.h"
#include "floe/train/run_config.h"

namespace floe::train {

class Validation {
 public:
  Validation(const RunConfig& config, const models::BuiltModel& built, shard::Engine& engine);

  // Collective: goes once over the held-out data of all ranks, without gradients. Ranks may have
  // different numbers of batches. For each source, val_loss_<source>: the mean over the labelled tokens
  // of all ranks, and val_perplexity_<source>; val_loss: their sum by the weights of training.
  std::vector<std::pair<std::string, double>> run();

 private:
  const RunConfig& config_;
  const models::BuiltModel& built_;
  shard::Engine& engine_;
  DataConfig held_out_;
  data::LoaderContext context_;
};

// Null when the configuration asks for none.
std::unique_ptr<Validation> make_validation(const RunConfig& config,
                                            const models::BuiltModel& built, shard::Engine& engine);

}  // namespace floe::train
