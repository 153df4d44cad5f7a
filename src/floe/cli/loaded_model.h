// The model of `floe forward` and `floe generate`: whole, with its weights read, ready to compute.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>

#include "floe/cli/options.h"
#include "floe/cli/used_model.h"
#include "floe/models/build.h"

namespace floe::cli {

struct LoadedModel {
  models::ModelConfig config;
  models::BuiltModel built;
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
};

// Reads --dtype (fp32, bf16, fp16) and --device (cpu, cuda), and builds what `path` stands for (Note
// [What a model is]) in evaluation mode. Says on stderr which checkpoint of a run is used, and which
// parameters are in no file.
LoadedModel load_model(const std::string& command, const std::string& path, const Args& changes,
                       const Options& options);

}  // namespace floe::cli
