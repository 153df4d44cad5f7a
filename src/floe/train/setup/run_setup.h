// The parts of a run, made from its configuration.
#pragma once

#include <vector>

#include "floe/checkpoint/checkpointer.h"
#include "floe/comm/world.h"
#include "floe/config/load.h"
#include "floe/data/loader/loader.h"
#include "floe/models/build.h"
#include "floe/optim/ema.h"
#include "floe/shard/engine.h"
#include "floe/train/phases/phases.h"
#include "floe/train/run_config.h"
#include "floe/train/step/step_graphs.h"

namespace floe::train {

// Makes every input of the configuration (files and folders that the run reads) absolute that is
// found, and run.dir, which lies in the working directory; see Note [Relative paths]. `values`
// have the origins.
void resolve_inputs(RunConfig& config, const config::Value& values);

// Throws ConfigError with the first input that was not found, and the places where it was looked
// for; and for what so many ranks cannot read (one file of prepared batches).
void require_inputs(const config::Loaded<RunConfig>& loaded, int num_ranks, int own_rank);

// Collective: rank 0 reads the frozen weights' files for their digests.
checkpoint::CheckpointerOptions checkpointer_options(const RunConfig& config,
                                                     const models::BuiltModel& built,
                                                     shard::Engine& engine, const Phases& phases,
                                                     optim::Ema* ema);

// The model, after a look at everything that the run will read and that can be checked beforehand.
models::BuiltModel build_run_model(const config::Loaded<RunConfig>& loaded,
                                   const comm::World& world);

// Reads this rank's part of a checkpoint that model.weights names and compares it with the
// checksums; all ranks together read every byte. Throws CheckpointError.
void check_weights(const RunConfig& config, const comm::World& world);

// What a model says of its data: the tokenizer, how pictures are made, how long a text may be.
data::LoaderContext context_of_model(const models::BuiltModel& built);
data::LoaderContext loader_context(const RunConfig& config, const models::BuiltModel& built,
                                   const comm::World& world);

// Of each source, by its number. Prepared batches have the weights of the sources they are from.
std::vector<double> loss_weights(const DataConfig& config);

// How many updates the run makes in all, unless a phase's `until` ends it earlier: `steps_done`,
// and with train.epochs as many as the rest of the data comes to. Throws ConfigError where epochs
// cannot be counted, or are longer than the phases.
std::int64_t count_steps(const RunConfig& config, const PhaseSchedule& schedule,
                         std::int64_t steps_done, const data::Loader& loader);

// With strategy.cuda_graphs: the stream to compute on, null without. Throws ConfigError where
// nothing can be recorded.
std::unique_ptr<c10::StreamGuard> graph_stream(const RunConfig& config, const comm::World& world);
StepGraphs::Options graph_options(const RunConfig& config);

// Samples that were dropped because they are damaged, so far, on this rank.
double count_bad(const data::Loader& loader);

}  // namespace floe::train
