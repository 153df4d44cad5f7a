// The blocks `train.clip`, `train.optimizer`, `train.schedule` and `train.ema`: what updates
// parameters.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/optim/lr_schedule.h"

namespace floe::config {
template <class T>
class Schema;
}

namespace floe::optim {

// An optimizer by its place in optimizer_types(): the registry knows their names, the first is the
// default.
enum class OptimizerKind : std::uint8_t {};
std::vector<std::pair<std::string_view, OptimizerKind>> enum_names(OptimizerKind);
std::vector<std::pair<std::string_view, ScheduleKind>> enum_names(ScheduleKind);

struct ClipConfig {
  std::optional<double> norm = 1.0;  // of all gradients together; null: off
  std::optional<double> value;       // of each element; null: off
};
void describe(config::Schema<ClipConfig>& s);

// Of an optimizer that does not read a key, the key must stay as it is here.
struct OptimizerConfig {
  OptimizerKind type{};
  double lr = 1e-4;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.1;
  std::vector<std::string> decay{"*gated_cross_attn*"};  // what decays; an empty list: everything
  double momentum = 0;
  // Learning rates of some parameters, by pattern; `lr` is that of all others.
  std::map<std::string, double> lr_patterns;
};
void describe(config::Schema<OptimizerConfig>& s);

struct ScheduleConfig {
  // Of the steps that the schedule runs over, where warmup_steps is not set; never more than
  // kMostWarmup steps.
  static constexpr double kWarmupFraction = 0.05;
  static constexpr std::int64_t kMostWarmup = 5000;
  // The same for decay_steps.
  static constexpr double kDecayFraction = 0.1;

  ScheduleKind type{};
  std::optional<std::int64_t> warmup_steps;  // null: the fraction above
  double min_lr = 0;                         // where a rate that falls ends
  std::optional<std::int64_t> decay_steps;   // of wsd; null: the fraction above

  // The steps of the warm-up in a run (or a set's turns) of so many steps.
  std::int64_t warmup_of(std::int64_t total_steps) const;
  // The steps at its end in which the rate of wsd falls; at least one.
  std::int64_t decay_of(std::int64_t total_steps) const;
};
void describe(config::Schema<ScheduleConfig>& s);

// An average of the weights over the steps.
struct EmaConfig {
  std::optional<double> decay;  // how slowly it follows; null: none is kept
};
void describe(config::Schema<EmaConfig>& s);

}  // namespace floe::optim
