#include "floe/cli/loaded_model.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <cstring>
#include <map>

#include "floe/checkpoint/checkpointer.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/models/weights/assembled_source.h"
#include "floe/models/weights/file_layouts.h"
#include "floe/models/weights/save.h"
#include "floe/models/weights/weight_defects.h"
#include "floe/nn/load.h"
#include "floe/strategy/strategy_options.h"

namespace floe::cli {
namespace {

template <class T>
T choose(const Options& options, const std::string& name, const std::map<std::string, T>& choices,
         const std::string& otherwise) {
  const std::string given = options.value(name).value_or(otherwise);
  const auto found = choices.find(given);
  if (found == choices.end()) {
    std::vector<std::string> names;
    for (const auto& [key, value] : choices) names.push_back(key);
    throw ConfigError(str(name, " is '", given, "', but must be one of ", join(names, ", ")));
  }
  return found->second;
}

// Nothing is used in silence that was never trained.
void log_new_parameters(const models::BuiltModel& built, const std::string& path) {
  std::vector<std::string> names;
  for (const nn::NamedParameter& parameter : nn::named_parameters(*built.module))
    if (!built.source->find(parameter.name)) names.push_back(parameter.name);
  if (names.empty()) return;
  std::vector<std::string> parts;
  for (const auto& [pattern, count] : models::name_patterns(names))
    parts.push_back(str(pattern, " (", count, ")"));
  log::warn("'", path, "' names no trained weights for ", names.size(),
            names.size() == 1 ? " parameter, which is" : " parameters, which are",
            " random: ", join(parts, ", "), "; name them with model.weights");
}

// Every rank holds its slices of everything, and gathers a layer when it computes it.
void slice(LoadedModel& loaded, std::shared_ptr<comm::World> world) {
  const StrategyConfig strategy;
  shard::ShardOptions how = strategy::shard_options_of(strategy);
  how.world = std::move(world);
  how.mixed_precision.param = loaded.dtype;
  how.trainable = std::vector<std::string>{};
  how.source = loaded.built.source.get();
  how.seed = loaded.seed;
  loaded.engine = shard::fully_shard(loaded.built.module,
                                     strategy::policy_of(strategy, *loaded.built.module), how);
  loaded.lockstep = std::make_shared<generation::Lockstep>(
      *loaded.built.model, loaded.device, loaded.dtype,
      [engine = loaded.engine](const std::vector<bool>& own) { return engine->any_rank_has(own); },
      &stop_on_signals());
}

// A model as tensors of a file; keeps the one that was read last.
class LayoutSource : public TensorSource {
 public:
  LayoutSource(models::BuiltModel built, std::uint64_t seed, bool flamingo)
      : built_(std::move(built)), source_(with_new_ones(built_, seed)) {
    const models::SaveOptions options{.source = source_.get()};
    for (models::SavedTensor& tensor : flamingo ? models::flamingo_layout(*built_.model)
                                                : models::language_model_layout(*built_.model)) {
      TensorInfo info{.name = tensor.name, .shape = tensor.shape};
      info.dtype = models::saved_dtype(tensor, options);
      const std::string name = tensor.name;
      tensors_.emplace(name, Entry{std::move(info), std::move(tensor)});
    }
  }

  std::vector<std::string> names() const override { return names_in(tensors_); }
  const TensorInfo* find(const std::string& name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second.info;
  }
  void read(const TensorInfo& tensor, std::int64_t first, std::int64_t count,
            std::span<std::byte> out) const override {
    const std::lock_guard lock(mutex_);
    if (held_ != tensor.name) {
      bytes_.clear();
      held_.clear();
      models::SavedTensorReader reader({}, source_.get());
      reader.read(tensors_.at(tensor.name).tensor, tensor.dtype,
                  [&](std::span<const std::byte> piece) {
                    bytes_.insert(bytes_.end(), piece.begin(), piece.end());
                  });
      held_ = tensor.name;
    }
    const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
    std::memcpy(out.data(), bytes_.data() + first * size, static_cast<std::size_t>(count * size));
  }

 private:
  struct Entry {
    TensorInfo info;
    models::SavedTensor tensor;
  };

  models::BuiltModel built_;
  std::shared_ptr<const TensorSource> source_;
  std::map<std::string, Entry> tensors_;
  mutable std::mutex mutex_;
  mutable std::string held_;
  mutable std::vector<std::byte> bytes_;
};

}  // namespace

at::Tensor read_image_tensors(const TensorSource& inputs, const std::string& path) {
  at::Tensor images;
  if (const TensorInfo* info = inputs.find("vision_x"))
    images = nn::read_tensor(inputs, *info);
  else if (const TensorInfo* small = inputs.find("vision_x_i8"))
    images = nn::read_tensor(inputs, *small).to(at::kFloat) / 64;
  if (!images.defined()) return images;
  require<DataError>(images.dim() == 6 && images.size(2) == 1, path,
                     ": images must have the shape [B, images, 1, 3, H, W] (one frame each), not [",
                     join(images.sizes()), "]");
  return images.squeeze(2).to(at::kFloat);
}

OptionRow dtype_option() {
  return {"--dtype", "fp32|bf16|fp16", "type of weights and computation (default fp32)"};
}

OptionRow device_option() { return {"--device", "cpu|cuda", "where to compute (default cpu)"}; }

at::Device device_of(const std::string& command, const Options& options) {
  const auto device = choose<at::Device>(
      options, "--device", {{"cpu", at::Device(at::kCPU)}, {"cuda", at::Device(at::kCUDA)}}, "cpu");
  require<ConfigError>(
      !device.is_cuda() || at::hasCUDA(), command,
      ": --device is cuda, but there is no GPU that this program can use; leave it "
      "out to compute on the CPU");
  return device;
}

OptionRow sharded_option() {
  return {"--sharded", "",
          "slice the model over the ranks instead of having it whole on each: for a model that is "
          "larger than a rank's memory"};
}

comm::WorldOptions ranks_of(const std::string& command, const Options& options) {
  comm::WorldOptions place;
  place.rendezvous = comm::find_rendezvous({.url = "env"}, comm::process_environment());
  require<ConfigError>(place.rendezvous.world_size > 1 || !options.has("--sharded"), command,
                       ": --sharded has no use on one rank; start several with 'floe launch -n N "
                       "-- ",
                       command, " ...', or leave it out");
  place.device = device_of(command, options);
  // Ranks with whole models only tell each other how far they are.
  place.backend = options.has("--sharded") && place.device->is_cuda() ? comm::Backend::nccl
                                                                      : comm::Backend::gloo;
  return place;
}

std::string weights_digest(const LoadedModel& loaded) {
  return str(checkpoint::weights_digest(*loaded.built.source), " ", loaded.seed);
}

LoadedModel load_model(const std::string& command, const std::string& path, const Args& changes,
                       const Options& options, std::shared_ptr<comm::World> world) {
  LoadedModel loaded;
  loaded.dtype = choose<at::ScalarType>(
      options, "--dtype", {{"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}},
      "fp32");
  loaded.device = world ? world->device() : device_of(command, options);
  if (loaded.device.is_cuda() && !loaded.device.has_index()) loaded.device.set_index(0);
  const Located located = locate(command, path, Wanted::weights);
  const UsedModel used = require_model(command, located, changes);
  loaded.config = used.config;
  loaded.origin = used.checkpoint.empty() ? used.origin : used.checkpoint;
  loaded.built = build(used);
  log_choice(located);
  log_new_parameters(loaded.built, path);
  loaded.seed = used.seed;
  if (world && options.has("--sharded"))
    slice(loaded, std::move(world));
  else
    nn::materialize(*loaded.built.module, loaded.built.source.get(), loaded.seed, loaded.device,
                    loaded.dtype);
  loaded.built.module->eval();
  return loaded;
}

std::shared_ptr<const TensorSource> with_new_ones(const models::BuiltModel& built,
                                                  std::uint64_t seed) {
  auto made = std::make_shared<models::AssembledSource>(seed);
  for (const nn::NamedParameter& parameter : nn::named_parameters(*built.module)) {
    if (built.source->find(parameter.name)) continue;
    made->add(parameter.name, parameter.tensor.sizes().vec(), DType::f32,
              {{.init = *parameter.init,
                .seed_name = parameter.name,
                .count = parameter.tensor.numel()}});
  }
  return std::make_shared<MergedSource>(
      std::vector<std::shared_ptr<const TensorSource>>{built.source, made});
}

std::shared_ptr<const TensorSource> model_tensors(const UsedModel& used) {
  return std::make_shared<LayoutSource>(build(used), used.seed,
                                        used.config.type == models::ModelConfig::Type::flamingo);
}

}  // namespace floe::cli
