// The blocks `train:` and `phases:`: how a step goes and how many there are.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/optim/optim_config.h"
#include "floe/schema/codec.h"

namespace floe::config {
template <class T>
class Schema;
}

namespace floe::train {

// Shards by source; a plain text is meant for the only source that there is.
struct ShardsBySource {
  std::map<std::string, std::string> by_source;  // the key "" stands for the only source
  // Of this source, when the run has so many sources; empty: none.
  std::string of(const std::string& source, std::size_t num_sources) const;
};

// A task of `floe eval` that is asked at every validation.
struct ValidationTask {
  std::string file;
  std::string name;                         // empty: that of the task
  std::int64_t samples = 64;                // that are asked; 0: all
  std::optional<std::int64_t> shots, seed;  // null: the first of the task's
};
void describe(config::Schema<ValidationTask>& s);

struct ValidationConfig {
  std::optional<std::int64_t> every_steps;  // null: never
  ShardsBySource shards;                    // held out
  std::optional<std::string> batches;       // prepared ones instead; {rank} is filled in
  std::optional<std::int64_t> max_batches;  // of each source and rank; null: all
  std::vector<ValidationTask> tasks;
  std::int64_t task_batch_tokens = 4096;  // Note [Token budget]

  bool holds_data_out() const { return batches || !shards.by_source.empty(); }
};
void describe(config::Schema<ValidationConfig>& s);

// Whether a name can be part of that of a metric: letters, digits, '_', '-' and '.'.
bool is_metric_name(const std::string& name);
// Whether a metric of validation gets better by rising: scores of tasks do, losses and perplexities
// do not.
bool higher_is_better(const std::string& metric);

// Something ends when a metric of validation has stopped getting better: falling, or, where higher
// is better, rising.
struct UntilConfig {
  std::string metric = "val_loss";
  std::int64_t patience = 1;  // validations in a row without getting better
  double min_delta = 0;       // that is by more than that
};
void describe(config::Schema<UntilConfig>& s);

struct TrainConfig {
  // per_rank: the mean over a rank's own labelled tokens, then over ranks, as DDP has it.
  // global: the mean over all labelled tokens of all ranks.
  enum class LossMean { per_rank, global };

  std::optional<std::int64_t> steps, epochs;
  std::optional<std::vector<std::string>> trainable;  // null: the model's own rule
  bool cycle_phases = false;                          // the phases begin again after the last
  bool packed = true;                                 // all sources in one pass
  std::int64_t gradient_accumulation = 1;
  LossMean loss_mean = LossMean::per_rank;
  std::int64_t max_skipped = 10;
  optim::ClipConfig clip;
  optim::OptimizerConfig optimizer;
  optim::ScheduleConfig schedule;
  optim::EmaConfig ema;
  ValidationConfig validation;
  std::optional<UntilConfig> stop;  // the whole run ends early; null: never
};
// Forwards and backwards of an update, where each of `num_sources` sources has one of its own
// unless they are packed.
int passes_per_update(const TrainConfig& train, std::size_t num_sources = 1);
inline auto enum_names(TrainConfig::LossMean) {
  using enum TrainConfig::LossMean;
  return std::to_array<std::pair<std::string_view, TrainConfig::LossMean>>(
      {{"per_rank", per_rank}, {"global", global}});
}
void describe(config::Schema<TrainConfig>& s);

// A set of parameters that trains for some steps.
struct PhaseConfig {
  // What becomes of the optimizer state of a set that rests.
  enum class OptimizerState { keep, offload, drop };

  std::string name;
  std::vector<std::string> train;     // patterns
  std::optional<std::int64_t> steps;  // of a turn
  std::optional<UntilConfig> until;   // beside `steps`: whichever comes first
  std::optional<double> lr, weight_decay;
  std::optional<optim::ScheduleConfig>
      schedule;  // over the set's own updates; null: train.schedule
  OptimizerState optimizer_state = OptimizerState::keep;
};
inline auto enum_names(PhaseConfig::OptimizerState) {
  using enum PhaseConfig::OptimizerState;
  return std::to_array<std::pair<std::string_view, PhaseConfig::OptimizerState>>(
      {{"keep", keep}, {"offload", offload}, {"drop", drop}});
}
void describe(config::Schema<PhaseConfig>& s);

}  // namespace floe::train

namespace floe {

template <>
struct config::Codec<train::ShardsBySource> : config::Leaf {
  static TypeName type() {
    return {"a string, or a block of strings by source", "shards by source"};
  }
  static bool read(const Value& value, train::ShardsBySource& out, const Place& place);
  static Value write(const train::ShardsBySource& shards, Write mode);
};

}  // namespace floe
