#include "floe/optim/optim_config.h"

#include <algorithm>
#include <cmath>

#include "floe/config/schema.h"

namespace floe {

void describe(config::Schema<ClipConfig>& s) {
  s.field("norm", &ClipConfig::norm, "Largest global norm of the gradients; null: no limit")
      .more_than(0);
  s.field("value", &ClipConfig::value, "Largest size of a gradient's element; null: no limit")
      .more_than(0);
}

int OptimizerConfig::num_moments() const {
  if (type == Type::adamw) return 2;
  return momentum > 0 ? 1 : 0;
}

void describe(config::Schema<OptimizerConfig>& s) {
  using C = OptimizerConfig;
  s.field("type", &C::type, "adamw keeps two moments of each trainable element, sgd one or none");
  s.field("lr", &C::lr, "Learning rate after warm-up").at_least(0);
  s.field("betas", &C::betas, "How slowly adamw's moments move");
  s.field("eps", &C::eps, "Added to the root of adamw's second moment").more_than(0);
  s.field(
       "weight_decay", &C::weight_decay,
       "Decay of what `decay` names; decoupled from the gradient with adamw, a part of it with sgd")
      .at_least(0);
  s.field("decay", &C::decay, "Patterns of the parameters that decay; an empty list is all");
  s.field("momentum", &C::momentum, "Of sgd; more than 0 keeps one moment")
      .at_least(0)
      .less_than(1);
  s.field(
       "lr_patterns", &C::lr_patterns,
       "Learning rates of some parameters by pattern, such as {\"perceiver.*\": 1e-5}; lr is that "
       "of the others, and the schedule goes for all")
      .at_least(0);
  s.check("momentum", [](const C& c) {
    return c.type != C::Type::sgd && c.momentum > 0
               ? "has no effect with adamw; remove it, or set type: sgd beside it"
               : "";
  });
  s.check("betas", [](const C& c) {
    for (const double beta : c.betas)
      if (beta < 0 || beta >= 1) return "must be two numbers from 0 up to, but not including, 1";
    return c.type == C::Type::sgd && c.betas != C{}.betas
               ? "has no effect with sgd; remove it, or set momentum instead"
               : "";
  });
  s.check("eps", [](const C& c) {
    return c.type == C::Type::sgd && c.eps != C{}.eps ? "has no effect with sgd; remove it" : "";
  });
}

void describe(config::Schema<ScheduleConfig>& s) {
  s.field("type", &ScheduleConfig::type,
          "After warm-up: constant, linear or cosine down to min_lr at the last step");
  s.field("warmup_steps", &ScheduleConfig::warmup_steps,
          "Steps in which the rate grows from 0; null: 5% of the steps, at most 5000")
      .at_least(0);
  s.field("min_lr", &ScheduleConfig::min_lr, "The rate at which linear and cosine end").at_least(0);
  s.check("min_lr", [](const ScheduleConfig& c) {
    return c.min_lr > 0 && c.type == ScheduleConfig::Type::constant
               ? "has no effect with a constant schedule; remove it, or set type: linear or cosine "
                 "beside it"
               : "";
  });
}

std::int64_t ScheduleConfig::warmup_of(std::int64_t total_steps) const {
  if (warmup_steps) return *warmup_steps;
  return std::min(kMostWarmup, static_cast<std::int64_t>(
                                   std::floor(kWarmupFraction * static_cast<double>(total_steps))));
}

void describe(config::Schema<EmaConfig>& s) {
  s.field("decay", &EmaConfig::decay,
          "How slowly an average of the trained weights follows them, such as 0.999; null: none")
      .more_than(0)
      .less_than(1);
}

}  // namespace floe
