#include "floe/train/run_setup.h"

#include <algorithm>
#include <filesystem>

#include "floe/checkpoint/manifest.h"
#include "floe/checkpoint/meeting.h"
#include "floe/checkpoint/verify.h"
#include "floe/core/log.h"
#include "floe/data/packing.h"
#include "floe/io/open_tensors.h"
#include "floe/train/foreign_names.h"
#include "floe/train/inputs.h"
#include "floe/train/metric_names.h"

namespace floe::train {
namespace {

// Collective: what the files of frozen weights hold. Rank 0 alone reads them; on a shared file system
// the others would only be in its way.
std::string digest_of(const std::string& path, comm::World& world) {
  static int number = 0;  // a meeting's name is used once
  checkpoint::Meeting meeting(world, str("frozen/", number++));
  return meeting.from_first(
      world.rank() == 0 ? checkpoint::weights_digest(*open_tensors(path)) : "",
      str("the digest of '", path, "'"));
}

// Frozen parameters that checkpoints hold although they do not train.
void tell_kept(const std::set<std::string>& kept, const shard::ShardPlan& plan) {
  std::int64_t count = 0, numel = 0;
  std::string first;
  for (const auto& parameter : plan.parameters) {
    if (parameter.trainable || !kept.contains(parameter.name)) continue;
    if (count++ == 0) first = parameter.name;
    numel += parameter.numel;
  }
  if (count > 0)
    log::info(
        "checkpoints also hold what is frozen but not in the files of model.lm and "
        "model.vision: ",
        count, count == 1 ? " parameter" : " parameters", " with ", numel, " elements, such as ",
        first);
}

}  // namespace

checkpoint::CheckpointerOptions checkpointer_options(const RunConfig& config,
                                                     const models::BuiltModel& built,
                                                     shard::Engine& engine, const Phases& phases,
                                                     optim::Ema* ema) {
  checkpoint::CheckpointerOptions options;
  options.config = config.checkpoint;
  options.run_folder = config.run.folder();
  options.engine = &engine;
  for (optim::Optimizer* optimizer : phases.optimizers())
    options.optimizers.push_back(
        {phases.several() ? phases.turns().name(optimizer->set()) : "", optimizer});
  options.ema = ema;
  options.foreign = foreign_names(*built.model);
  for (const std::string& path : models::base_files(config.model))
    options.bases.push_back({path, digest_of(path, engine.world())});
  options.nothing_initialised = config.model.skip_init;
  if (!config.model.skip_init)
    for (const auto& parameter : engine.plan().parameters)
      if (!built.of_base.contains(parameter.name)) options.kept.insert(parameter.name);
  if (engine.world().rank() == 0) {
    if (config.checkpoint.content == checkpoint::Content::trainable)
      tell_kept(options.kept, engine.plan());
    if (const std::string ranked = ranked_saves(config); !ranked.empty()) log::info(ranked);
  }
  return options;
}

models::BuiltModel build_run_model(const config::Loaded<RunConfig>& loaded,
                                   const comm::World& world) {
  require_inputs(loaded, world.size());
  return models::build_model(loaded.config.model, loaded.config.run.seed);
}

void check_weights(const RunConfig& config, const comm::World& world) {
  const std::string& path = config.model.weights;
  const std::string manifest = checkpoint::manifest_path(path);
  std::error_code ignored;
  if (path.empty() || config.model.skip_init || !std::filesystem::exists(manifest, ignored)) return;
  const auto ranges = checkpoint::ranges_of(path, checkpoint::read_manifest(manifest));
  try {
    checkpoint::verify(path, ranges, world.rank(), world.size());
  } catch (const CheckpointError& error) {
    throw CheckpointError(str("model.weights: ", error.what(), "; name another checkpoint"));
  }
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

std::int64_t count_steps(const RunConfig& config, const PhaseTurns& turns, std::int64_t steps_done,
                         const data::Loader& loader) {
  auto most = turns.most_steps();
  // Phases that begin anew, in a run that has gone further without them, have all their steps to come.
  if (most) *most += steps_done - turns.updates();
  if (turns.size() == 1 && most) return *most;
  if (config.train.steps) return *config.train.steps;
  if (!config.train.epochs) return *most;
  const auto per_epoch = loader.steps_per_epoch();
  require<ConfigError>(per_epoch.has_value(),
                       "train.epochs is set, but the data has no end; set num_samples of every "
                       "source, or train.steps instead");
  // By what is left of the data: the ranks, or the steps that were skipped, may have been others before.
  const std::int64_t batches = std::max<std::int64_t>(
      0, (*config.train.epochs - loader.epoch()) * *per_epoch - loader.index());
  const std::int64_t accumulation = config.train.gradient_accumulation;
  const std::int64_t steps = steps_done + (batches + accumulation - 1) / accumulation;
  require<ConfigError>(!most || steps <= *most, "train.epochs gives ", steps,
                       " steps, but the phases end after ", most.value_or(0),
                       "; lower train.epochs, leave steps out of the last phase, or set "
                       "train.cycle_phases");
  return steps;
}

std::unique_ptr<c10::StreamGuard> graph_stream(const RunConfig& config, const comm::World& world) {
  if (!config.strategy.cuda_graphs) return nullptr;
  StepGraphs::require_device(world);
  return computing_stream(world.device());
}

StepGraphs::Options graph_options(const RunConfig& config) {
  StepGraphs::Options options;
  options.drops_out = config.model.dropout != models::ModelConfig::Dropout::none ||
                      (config.model.lora && config.model.lora->dropout > 0);
  return options;
}

double count_bad(const data::Loader& loader) {
  std::int64_t bad = 0;
  for (const auto& [source, counts] : loader.counts()) bad += counts.num_damaged();
  return static_cast<double>(bad);
}

}  // namespace floe::train
