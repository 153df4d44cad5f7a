// Which number types a run computes, stores and communicates in, and who decided it.
//
// Note [Precision]
// `strategy.mixed_precision` decides how parameters are gathered, gradients reduced and buffers
// kept, whatever else is set. `precision.autocast` only puts torch's autocast around the forward.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

#include "floe/observe/diagnostics/strategy_lines.h"
#include "floe/train/run_config.h"

namespace floe::train {

// Of activations and inputs, outside of autocast.
c10::ScalarType compute_dtype(const RunConfig& config);

// With which the loss of a run in fp16 is scaled; null for other runs.
std::optional<double> first_loss_scale(const RunConfig& config);

// What a run says about its strategy; `values` are those of load_run_config. Refers to both.
diagnostics::StrategySettings strategy_settings(const RunConfig& config,
                                                const config::Value& values, int world_size = 1);

// Lines for people, each with the place a setting comes from; `values` are those of
// load_run_config.
std::vector<std::string> precision_lines(const RunConfig& config, const config::Value& values);

}  // namespace floe::train
