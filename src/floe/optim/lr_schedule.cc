#include "floe/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "floe/core/error.h"

namespace floe::optim {

double LrSchedule::factor(std::int64_t step) const {
  if (step < warmup_steps)
    return static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(1, warmup_steps));
  if (kind == Kind::constant) return 1;
  const auto span = static_cast<double>(std::max<std::int64_t>(1, total_steps - warmup_steps));
  const auto towards_the_end = [this](double fallen) {
    return last_factor == 0 ? fallen : last_factor + (1 - last_factor) * fallen;
  };
  if (kind == Kind::linear)
    return towards_the_end(std::max(0.0, static_cast<double>(total_steps - step) / span));
  // Not beyond the end, where the cosine would rise again.
  const double after = std::min(span, static_cast<double>(step - warmup_steps));
  return towards_the_end(std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * after / span))));
}

LrSchedule::Kind lr_schedule_from_name(const std::string& name) {
  if (name == "constant") return LrSchedule::Kind::constant;
  if (name == "linear") return LrSchedule::Kind::linear;
  if (name == "cosine") return LrSchedule::Kind::cosine;
  throw ConfigError(str("schedule '", name, "' is not one of constant, linear, cosine"));
}

}  // namespace floe::optim
