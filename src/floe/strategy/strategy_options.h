// From the block `strategy:` to what the engine takes.
#pragma once

#include <torch/nn/module.h>

#include "floe/core/dtype.h"
#include "floe/shard/options.h"
#include "floe/strategy/strategy_config.h"

namespace floe::plan {

// Which modules of this model are units. The default list names the units of all of floe's models, so
// entries that this one does not have are left out; a list of the user's own is taken as it is.
shard::Policy policy_of(const StrategyConfig& strategy, const torch::nn::Module& model);

// Everything the block says; world, trainable, source and seed are the caller's.
shard::ShardOptions shard_options_of(const StrategyConfig& strategy);

c10::ScalarType scalar_type_of(DType dtype);
// The short name of configurations: "bf16".
std::string_view name_of(c10::ScalarType dtype);

}  // namespace floe::plan
