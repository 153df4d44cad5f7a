// Whole models: with their weights read and ready to compute (`floe forward`, `floe generate`), or
// as the tensors of a file (`floe diff`, `floe export`).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <string>

#include "floe/cli/options.h"
#include "floe/cli/used_model.h"
#include "floe/comm/world.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/models/build.h"
#include "floe/requests/work.h"
#include "floe/shard/engine.h"

namespace floe::cli {

// Images in a file of tensors, under the names that OpenFlamingo gives them: `vision_x` (float) or
// `vision_x_i8` (int8, divided by 64), [B, images, 1, 3, H, W], as [B, images, 3, H, W] fp32;
// undefined when there is neither. `path` is for messages.
at::Tensor read_image_tensors(const TensorSource& inputs, const std::string& path);

struct LoadedModel {
  models::ModelConfig config;
  models::BuiltModel built;
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  std::string origin;  // the checkpoint whose weights are used, else the file that names the model
  std::uint64_t seed = 0;  // of parameters that are in no file
  // With --sharded: who slices it over the ranks, and keeps them in step (Note [Lockstep]).
  std::shared_ptr<shard::Engine> engine;
  std::shared_ptr<generation::Lockstep> lockstep;

  requests::ReadyModel ready() const { return {built, device, dtype, lockstep.get()}; }
};

// The options that load_model reads, as --help has them.
OptionRow dtype_option();
OptionRow device_option();
OptionRow sharded_option();

// What --device says, without an index. Throws ConfigError where there is no such device.
at::Device device_of(const std::string& command, const Options& options);

// Reads --dtype (fp32, bf16, fp16) and --device (cpu, cuda), and builds what `path` stands for
// (Note [What a model is]) in evaluation mode. Says on stderr which checkpoint of a run is used,
// and which parameters are in no file. `world`: of a job with several ranks; with --sharded this is
// collective, and each rank reads and holds its slices.
LoadedModel load_model(const std::string& command, const std::string& path, const Args& changes,
                       const Options& options, std::shared_ptr<comm::World> world = nullptr);

// Models under the same name are told apart by what they are: their files, and the seed
// of the rest.
std::string weights_digest(const LoadedModel& loaded);

// Of a command that may run on several ranks: where they meet, and by what. Throws ConfigError for
// --sharded on one.
comm::WorldOptions ranks_of(const std::string& command, const Options& options);

// A whole model as the tensors of the file that `floe export` would write: a Flamingo under
// OpenFlamingo's names, a language model under Hugging Face's, adapters merged. Keeps the tensor
// that was read last, whole; nothing else is held.
std::shared_ptr<const TensorSource> model_tensors(const UsedModel& used);

// The weights of a model that was built, with those that are in no file as a run of this seed
// begins them.
std::shared_ptr<const TensorSource> with_new_ones(const models::BuiltModel& built,
                                                  std::uint64_t seed);

}  // namespace floe::cli
