#include "floe/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "floe/core/error.h"
#include "floe/optim/optim_config.h"

namespace floe::optim {
namespace {

// As transformers' get_{constant,linear,cosine}_schedule_with_warmup have them.

double steps_after_warmup(const LrSchedule& schedule) {
  return static_cast<double>(
      std::max<std::int64_t>(1, schedule.total_steps - schedule.warmup_steps));
}

// What would fall from 1 to 0 falls to the last factor, in the same shape.
double down_to_last(const LrSchedule& schedule, double height) {
  const double last = schedule.last_factor;
  return last == 0 ? height : last + (1 - last) * height;
}

double constant(const LrSchedule& /*schedule*/, std::int64_t /*step*/) { return 1; }

double linear(const LrSchedule& schedule, std::int64_t step) {
  const auto left = static_cast<double>(schedule.total_steps - step);
  return down_to_last(schedule, std::max(0.0, left / steps_after_warmup(schedule)));
}

double cosine(const LrSchedule& schedule, std::int64_t step) {
  const double span = steps_after_warmup(schedule);
  // Not beyond the end, where the cosine would rise again.
  const double after = std::min(span, static_cast<double>(step - schedule.warmup_steps));
  return down_to_last(schedule,
                      std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * after / span))));
}

// Warm-up, stable, decay (Hu et al. 2024, "MiniCPM"): a run can go on from any checkpoint of
// the stable stretch with another length. Where the decay is longer than what the warm-up
// leaves, it begins there.
double wsd(const LrSchedule& schedule, std::int64_t step) {
  const double decay =
      std::min(static_cast<double>(schedule.decay_steps), steps_after_warmup(schedule));
  const auto left = static_cast<double>(schedule.total_steps - step);
  return left >= decay ? 1 : down_to_last(schedule, std::max(0.0, left / decay));
}

}  // namespace

const std::vector<ScheduleType>& schedule_types() {
  static const std::vector<ScheduleType> types{
      {"constant", "as it is", {}, false, constant},
      {"linear", "in a straight line down to min_lr", {"min_lr"}, true, linear},
      {"cosine", "along half a cosine down to min_lr", {"min_lr"}, true, cosine},
      {"wsd",
       "as it is, in the last decay_steps down to min_lr",
       {"min_lr", "decay_steps"},
       true,
       wsd},
  };
  return types;
}

const ScheduleType& schedule_type(ScheduleKind kind) {
  return schedule_types().at(static_cast<std::size_t>(kind));
}

ScheduleKind lr_schedule_from_name(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [known, kind] : enum_names(ScheduleKind{})) {
    if (known == name) return kind;
    names.emplace_back(known);
  }
  throw ConfigError(str("schedule '", name, "' is not one of ", join(names)));
}

double LrSchedule::factor(std::int64_t step) const {
  if (step < warmup_steps)
    return static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(1, warmup_steps));
  return schedule_type(kind).factor(*this, step);
}

LrSchedule make_schedule(const ScheduleConfig& config, std::int64_t total_steps, double lr) {
  return {.kind = config.type,
          .warmup_steps = config.warmup_of(total_steps),
          .total_steps = total_steps,
          .last_factor = lr > 0 ? std::min(1.0, config.min_lr / lr) : 0,
          .decay_steps = config.decay_of(total_steps)};
}

}  // namespace floe::optim
