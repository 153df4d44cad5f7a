// What a run is on, and the strategy that it takes with `strategy: auto`.
#pragma once

#include "floe/comm/world.h"
#include "floe/config/load.h"
#include "floe/plan/choose/choose.h"
#include "floe/strategy/strategy_config.h"
#include "floe/train/run_config.h"

namespace floe::cli {

// The device of this rank, its share of the memory, and how many ranks its host has.
plan::RunPlace place_of(const comm::World& world, const AutoStrategyConfig& asked);

// Collective: the configuration with the strategy that strategy.auto chooses, as it is without.
// Rank 0 decides: it keeps what an earlier start of this run chose for the same question, else it
// searches, and says so in the log. Throws ConfigError on all ranks.
config::Loaded<train::RunConfig> choose_strategy(const config::Loaded<train::RunConfig>& loaded,
                                                 comm::World& world);

}  // namespace floe::cli
