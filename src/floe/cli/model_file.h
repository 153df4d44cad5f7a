// The model of `floe forward` and `floe generate`: a YAML with the block `model:` as its whole.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>

#include "floe/cli/options.h"
#include "floe/models/build.h"

namespace floe::cli {

struct LoadedModel {
  models::ModelConfig config;
  models::BuiltModel built;
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
};

// Reads --dtype (fp32, bf16, fp16) and --device (cpu, cuda), builds the model and reads its weights:
// whole, in evaluation mode. Paths in the YAML are relative to it; a whole training configuration
// works as well, its block `model:` is taken.
LoadedModel load_model_file(const std::string& path, const Options& options);

}  // namespace floe::cli
