// From the block `strategy:` to what the engine takes, and from what the engine refuses back to the
// keys of the configuration.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <string_view>

#include "floe/core/dtype.h"
#include "floe/core/error.h"
#include "floe/shard/options.h"
#include "floe/strategy/strategy_config.h"

namespace floe::strategy {

// Which modules of this model are units. The default list names the units of all of floe's models,
// so entries that this one does not have are left out; a list of the user's own is taken as it is.
shard::Policy policy_of(const StrategyConfig& strategy, const torch::nn::Module& model);

// Everything the block says; world, trainable, source and seed are the caller's.
shard::ShardOptions shard_options_of(const StrategyConfig& strategy);

// The message with the configuration's keys in place of the engine's options:
// "Policy::units" becomes "strategy.units".
std::string with_config_keys(std::string message);

// Calls `make`, which hands options of a configuration to the engine or its planner. What they
// refuse is said in the words of the configuration.
template <class F>
auto in_words_of_config(F&& make) {
  try {
    return make();
  } catch (const ConfigError& e) {
    throw ConfigError(with_config_keys(e.what()));
  } catch (const DataError& e) {
    throw DataError(with_config_keys(e.what()));
  }
}

c10::ScalarType scalar_type_of(DType dtype);
// The short name of configurations: "bf16".
std::string_view name_of(c10::ScalarType dtype);

}  // namespace floe::strategy
