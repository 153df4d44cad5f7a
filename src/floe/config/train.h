// The blocks `train:`, `phases:` and `precision:`: how a step goes and how many there are.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/config/codec.h"
#include "floe/core/dtype.h"

namespace floe {
namespace config {
template <class T>
class Schema;
}

struct ClipConfig {
  std::optional<double> norm = 1.0;  // of all gradients together; null: off
  std::optional<double> value;       // of each element; null: off
};
void describe(config::Schema<ClipConfig>& s);

struct OptimizerConfig {
  enum class Type { adamw, sgd };

  Type type = Type::adamw;
  double lr = 1e-4;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.1;
  std::vector<std::string> decay{"*gated_cross_attn*"};  // what decays; an empty list: everything
  double momentum = 0;                                   // of sgd
  // Learning rates of some parameters, by pattern; `lr` is that of all others.
  std::map<std::string, double> lr_patterns;
  // How many values it keeps per trainable element.
  int num_moments() const;
};
inline auto enum_names(OptimizerConfig::Type) {
  using enum OptimizerConfig::Type;
  return std::to_array<std::pair<std::string_view, OptimizerConfig::Type>>(
      {{"adamw", adamw}, {"sgd", sgd}});
}
void describe(config::Schema<OptimizerConfig>& s);

struct ScheduleConfig {
  enum class Type { constant, linear, cosine };

  // Of the steps that the schedule runs over, where warmup_steps is not set; never more than
  // kMostWarmup steps.
  static constexpr double kWarmupFraction = 0.05;
  static constexpr std::int64_t kMostWarmup = 5000;

  Type type = Type::constant;
  std::optional<std::int64_t> warmup_steps;  // null: the fraction above
  double min_lr = 0;                         // where linear and cosine end

  // The steps of the warm-up in a run (or a set's turns) of so many steps.
  std::int64_t warmup_of(std::int64_t total_steps) const;
};
inline auto enum_names(ScheduleConfig::Type) {
  using enum ScheduleConfig::Type;
  return std::to_array<std::pair<std::string_view, ScheduleConfig::Type>>(
      {{"constant", constant}, {"linear", linear}, {"cosine", cosine}});
}
void describe(config::Schema<ScheduleConfig>& s);

// An average of the weights over the steps.
struct EmaConfig {
  std::optional<double> decay;  // how slowly it follows; null: none is kept
};
void describe(config::Schema<EmaConfig>& s);

// Shards by source; a plain text is meant for the only source that there is.
struct ShardsBySource {
  std::map<std::string, std::string> by_source;  // the key "" stands for the only source
  // Of this source, when the run has so many sources; empty: none.
  std::string of(const std::string& source, std::size_t num_sources) const;
};

struct ValidationConfig {
  std::optional<std::int64_t> every_steps;  // null: never
  ShardsBySource shards;                    // held out
  std::optional<std::string> batches;       // prepared ones instead; {rank} is filled in
  std::optional<std::int64_t> max_batches;  // of each source and rank; null: all
};
void describe(config::Schema<ValidationConfig>& s);

// Something ends when a metric of validation has stopped falling.
struct UntilConfig {
  std::string metric = "val_loss";
  std::int64_t patience = 1;  // validations in a row without a fall
  double min_delta = 0;       // a fall is more than that
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
  ClipConfig clip;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  EmaConfig ema;
  ValidationConfig validation;
  std::optional<UntilConfig> stop;  // the whole run ends early; null: never
};
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
  std::optional<ScheduleConfig> schedule;  // over the set's own updates; null: train.schedule
  OptimizerState optimizer_state = OptimizerState::keep;
};
inline auto enum_names(PhaseConfig::OptimizerState) {
  using enum PhaseConfig::OptimizerState;
  return std::to_array<std::pair<std::string_view, PhaseConfig::OptimizerState>>(
      {{"keep", keep}, {"offload", offload}, {"drop", drop}});
}
void describe(config::Schema<PhaseConfig>& s);

struct PrecisionConfig {
  std::optional<DType> autocast;     // fp32 computation under torch's autocast; null: off
  std::optional<double> loss_scale;  // the first one with fp16; null: 65536 with fp16, else none
};
void describe(config::Schema<PrecisionConfig>& s);

template <>
struct config::Codec<ShardsBySource> : config::Leaf {
  static TypeName type() {
    return {"a string, or a block of strings by source", "shards by source"};
  }
  static bool read(const Value& value, ShardsBySource& out, const Place& place);
  static Value write(const ShardsBySource& shards, Write mode);
};

}  // namespace floe
