// The parts of a run, made from its configuration.
#pragma once

#include <memory>
#include <vector>

#include "floe/checkpoint/checkpointer.h"
#include "floe/comm/world.h"
#include "floe/data/loader.h"
#include "floe/models/build.h"
#include "floe/optim/ema.h"
#include "floe/optim/optimizer.h"
#include "floe/shard/engine.h"
#include "floe/train/run_config.h"

namespace floe::train {

// The default pattern of what decays is that of a Flamingo; a model that has nothing of that name
// decays everywhere. Throws ConfigError for a pattern of the user's that matches nothing.
std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerConfig& config,
                                                 shard::Engine& engine);

checkpoint::CheckpointerOptions checkpointer_options(const RunConfig& config,
                                                     const models::BuiltModel& built,
                                                     shard::Engine& engine,
                                                     optim::Optimizer& optimizer, optim::Ema* ema);

data::LoaderContext loader_context(const RunConfig& config, const models::BuiltModel& built,
                                   const comm::World& world);

// Of each source, by data::SourceId. Prepared batches have the weights of the sources they are from.
std::vector<double> loss_weights(const DataConfig& config);

// Samples that were dropped because they are damaged, so far, on this rank.
double count_bad(const data::Loader& loader);

}  // namespace floe::train
