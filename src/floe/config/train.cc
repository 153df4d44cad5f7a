#include "floe/config/train.h"

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
  s.field("weight_decay", &C::weight_decay, "Decoupled decay of what `decay` names").at_least(0);
  s.field("decay", &C::decay, "Patterns of the parameters that decay; an empty list is all");
  s.field("momentum", &C::momentum, "Of sgd; more than 0 keeps one moment")
      .at_least(0)
      .less_than(1);
  s.check("momentum", [](const C& c) {
    return c.type != C::Type::sgd && c.momentum > 0
               ? "has no effect with adamw; remove it, or set type: sgd beside it"
               : "";
  });
  s.check("betas", [](const C& c) {
    for (const double beta : c.betas)
      if (beta < 0 || beta >= 1) return "must be two numbers from 0 up to, but not including, 1";
    return "";
  });
}

void describe(config::Schema<ScheduleConfig>& s) {
  s.field("type", &ScheduleConfig::type,
          "After warm-up: constant, linear to 0 or cosine to 0 at the last step");
  s.field("warmup_steps", &ScheduleConfig::warmup_steps, "Steps in which the rate grows from 0")
      .at_least(0);
}

void describe(config::Schema<TrainConfig>& s) {
  using C = TrainConfig;
  s.field("steps", &C::steps, "Number of optimizer updates; null: by epochs").at_least(1);
  s.field("epochs", &C::epochs, "Number of epochs; null: by steps").at_least(1);
  s.field("trainable", &C::trainable, "Patterns of what trains; null: the model's own rule");
  s.field("packed", &C::packed,
          "All sources of a step in one pass; false: one after the other, as OpenFlamingo does");
  s.field("gradient_accumulation", &C::gradient_accumulation, "Batches of each source per update")
      .at_least(1);
  s.field("loss_mean", &C::loss_mean,
          "per_rank: mean over a rank's labelled tokens, then over ranks; global: over all tokens");
  s.field("max_skipped", &C::max_skipped,
          "Updates in a row that may be skipped for a loss or gradient that is not finite")
      .at_least(0);
  s.section("clip", &C::clip, "Limits on gradients");
  s.section("optimizer", &C::optimizer, "What updates parameters");
  s.section("schedule", &C::schedule, "The learning rate over steps");
  s.check("steps", [](const C& c) {
    return c.steps && c.epochs ? "and train.epochs are both set; keep one" : "";
  });
}

void describe(config::Schema<PrecisionConfig>& s) {
  s.choice("autocast", &PrecisionConfig::autocast, {"bf16", "fp16"},
           "Computation under torch's autocast in that type; null: off");
  s.field("loss_scale", &PrecisionConfig::loss_scale,
          "First scale of the loss with fp16; null: 65536 with fp16, none otherwise")
      .more_than(0);
}

}  // namespace floe
