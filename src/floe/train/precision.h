// Which number types a run computes, stores and communicates in, and who decided it.
//
// Note [Precision]
// `strategy.mixed_precision` decides how parameters are gathered, gradients reduced and buffers kept,
// whatever else is set. `precision.autocast` only puts torch's autocast around the forward.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "floe/train/run_config.h"

namespace floe::train {

// Of activations and inputs, outside of autocast.
c10::ScalarType compute_dtype(const RunConfig& config);

// Lines for people, each with the place a setting comes from; `values` are those of load_run_config.
std::vector<std::string> precision_lines(const RunConfig& config, const config::Value& values);

}  // namespace floe::train
