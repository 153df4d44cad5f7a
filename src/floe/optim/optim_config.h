// The blocks `train.clip`, `train.optimizer`, `train.schedule` and `train.ema`: what updates parameters.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

}  // namespace floe
