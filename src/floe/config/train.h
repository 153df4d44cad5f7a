// The blocks `train:` and `precision:`: how a step goes and how many there are.
#pragma once

#include <array>
#include <cstdint>
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

  Type type = Type::constant;
  std::int64_t warmup_steps = 5000;
};
inline auto enum_names(ScheduleConfig::Type) {
  using enum ScheduleConfig::Type;
  return std::to_array<std::pair<std::string_view, ScheduleConfig::Type>>(
      {{"constant", constant}, {"linear", linear}, {"cosine", cosine}});
}
void describe(config::Schema<ScheduleConfig>& s);

struct TrainConfig {
  // per_rank: the mean over a rank's own labelled tokens, then over ranks, as DDP has it.
  // global: the mean over all labelled tokens of all ranks.
  enum class LossMean { per_rank, global };

  std::optional<std::int64_t> steps, epochs;
  std::optional<std::vector<std::string>> trainable;  // null: the model's own rule
  bool packed = true;                                 // all sources in one pass
  std::int64_t gradient_accumulation = 1;
  LossMean loss_mean = LossMean::per_rank;
  std::int64_t max_skipped = 10;
  ClipConfig clip;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
};
inline auto enum_names(TrainConfig::LossMean) {
  using enum TrainConfig::LossMean;
  return std::to_array<std::pair<std::string_view, TrainConfig::LossMean>>(
      {{"per_rank", per_rank}, {"global", global}});
}
void describe(config::Schema<TrainConfig>& s);

struct PrecisionConfig {
  std::optional<DType> autocast;     // fp32 computation under torch's autocast; null: off
  std::optional<double> loss_scale;  // the first one with fp16; null: 65536 with fp16, else none
};
void describe(config::Schema<PrecisionConfig>& s);

}  // namespace floe
