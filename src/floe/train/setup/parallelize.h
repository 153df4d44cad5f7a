// How a model is spread over the ranks: the whole plan on one page, in the order it is applied.
#pragma once

#include <memory>

#include "floe/comm/world.h"
#include "floe/models/build.h"
#include "floe/shard/engine.h"
#include "floe/train/run_config.h"

namespace floe::train {

// Collective: all ranks meet, as the block `dist:` says.
// `run`: what they work on, see WorldOptions.
std::shared_ptr<comm::World> join_world(const DistConfig& config, const std::string& run = "");

// Collective: all ranks, with the same configuration.
std::shared_ptr<shard::Engine> parallelize(const RunConfig& config, const models::BuiltModel& built,
                                           std::shared_ptr<comm::World> world);

}  // namespace floe::train
