#include "floe/train/setup/parallelize.h"

#include "floe/data/sources/source.h"
#include "floe/shard/plan/plan.h"
#include "floe/strategy/strategy_options.h"
#include "floe/train/phases/phases.h"

namespace floe::train {
namespace {

// Pictures are encoded without gradients: a tower that "trains" would only decay away.
void refuse_image_tower(const shard::ShardPlan& plan) {
  for (const auto& parameter : plan.parameters)
    require<ConfigError>(
        !parameter.trainable || !parameter.name.starts_with("vision_encoder."),
        "train.trainable (or phases) names '", parameter.name,
        "', but the image tower is never trained; name what else shall train, such as "
        "[\"perceiver.*\", \"lang_encoder.*\"]");
}

}  // namespace

std::shared_ptr<comm::World> join_world(const DistConfig& config, const std::string& run) {
  comm::WorldOptions options;
  options.backend = comm::backend_from_name(config.backend);
  if (config.device == "cpu") options.device = c10::Device(c10::kCPU);
  if (config.device == "cuda") options.device = c10::Device(c10::kCUDA);
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(config.timeout_s * 1000));
  options.run = run;
  options.interface = config.interface;
  comm::ManualInit init{.url = config.init};
  if (config.rank) init.rank = static_cast<int>(*config.rank);
  if (config.world_size) init.world_size = static_cast<int>(*config.world_size);
  options.rendezvous = comm::find_rendezvous(init, comm::process_environment());
  return comm::World::join(options);
}

std::shared_ptr<shard::Engine> parallelize(const RunConfig& config, const models::BuiltModel& built,
                                           std::shared_ptr<comm::World> world) {
  shard::ShardOptions options = strategy::shard_options_of(config.strategy);
  options.world = std::move(world);
  if (config.phases.size() > 1)
    options.sets = parameter_sets(config.phases);
  else
    options.trainable = config.phases.empty() ? config.train.trainable : config.phases[0].train;
  // A file of prepared batches may have all sources; it is opened later.
  options.passes_per_update = passes_per_update(
      config.train, config.data.batches ? data::num_sources() : config.data.sources().size());
  options.source = built.source.get();
  options.seed = config.run.seed;
  if (config.precision.autocast)
    options.autocast = strategy::scalar_type_of(*config.precision.autocast);
  const shard::Policy policy = strategy::policy_of(config.strategy, *built.module);
  auto engine = strategy::in_words_of_config(
      [&] { return shard::fully_shard(built.module, policy, options); });
  refuse_image_tower(engine->plan());
  return engine;
}

}  // namespace floe::train
