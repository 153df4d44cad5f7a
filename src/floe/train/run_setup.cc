#include "floe/train/run_setup.h"

#include "floe/core/names.h"
#include "floe/data/packing.h"
#include "floe/io/open_tensors.h"
#include "floe/train/foreign_names.h"

namespace floe::train {
namespace {

bool any_trainable_matches(const shard::Engine& engine, const std::vector<std::string>& patterns) {
  for (const auto& parameter : engine.plan().parameters)
    if (parameter.trainable && glob_match_any(patterns, parameter.name)) return true;
  return false;
}

}  // namespace

std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerConfig& config,
                                                 shard::Engine& engine) {
  optim::DecayRule decay{config.weight_decay, config.decay};
  if (config.decay == OptimizerConfig{}.decay && !any_trainable_matches(engine, config.decay))
    decay.patterns.clear();
  if (config.type == OptimizerConfig::Type::sgd)
    return std::make_unique<optim::Sgd>(engine, optim::SgdOptions{config.momentum, decay});
  return std::make_unique<optim::AdamW>(
      engine, optim::AdamWOptions{config.betas[0], config.betas[1], config.eps, decay});
}

checkpoint::CheckpointerOptions checkpointer_options(const RunConfig& config,
                                                     const models::BuiltModel& built,
                                                     shard::Engine& engine,
                                                     optim::Optimizer& optimizer, optim::Ema* ema) {
  checkpoint::CheckpointerOptions options;
  options.config = config.checkpoint;
  options.run_folder = config.run.folder();
  options.engine = &engine;
  options.optimizer = &optimizer;
  options.ema = ema;
  options.foreign = foreign_names(*built.model);
  if (config.checkpoint.content == checkpoint::Content::trainable && built.source)
    for (const std::string& path : {config.model.lm, config.model.vision})
      if (!path.empty() && !config.model.random_init)
        options.bases.push_back({path, checkpoint::weights_digest(*open_tensors(path))});
  return options;
}

data::LoaderContext loader_context(const RunConfig& config, const models::BuiltModel& built,
                                   const comm::World& world) {
  data::LoaderContext context;
  context.rank = world.rank();
  context.world = world.size();
  context.seed = config.run.seed;
  context.tokenizer = built.tokenizer.get();
  if (built.tokens) context.tokens = *built.tokens;
  if (built.model->image_size() > 0)
    context.transform.size = static_cast<int>(built.model->image_size());
  if (world.device().is_cuda()) context.allocate = data::pinned_images();
  return context;
}

std::vector<double> loss_weights(const DataConfig& config) {
  return {config.laion.value_or(LaionConfig{}).weight, config.mmc4.value_or(Mmc4Config{}).weight,
          config.text.value_or(TextConfig{}).weight};
}

double count_bad(const data::Loader& loader) {
  std::int64_t bad = 0;
  for (const auto& [source, counts] : loader.counts()) bad += counts.num_damaged();
  return static_cast<double>(bad);
}

}  // namespace floe::train
