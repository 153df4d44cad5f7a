#include "floe/config/train.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "floe/config/schema.h"

namespace floe {

bool config::Codec<ShardsBySource>::read(const Value& value, ShardsBySource& out,
                                         const Place& place) {
  out.by_source.clear();
  if (value.is_null()) return true;
  if (value.as<Map>())
    return Codec<std::map<std::string, std::string>>::read(value, out.by_source, place);
  if (value.as<List>()) return place.fail(value, "must be ", type().one, ", not ", value.shown());
  return Codec<std::string>::read(value, out.by_source[""], place);
}

config::Value config::Codec<ShardsBySource>::write(const ShardsBySource& shards, Write mode) {
  if (shards.by_source.empty()) return Value();
  if (const auto only = shards.by_source.find(""); only != shards.by_source.end())
    return Value(only->second);
  return Codec<std::map<std::string, std::string>>::write(shards.by_source, mode);
}

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

std::string ShardsBySource::of(const std::string& source, std::size_t num_sources) const {
  if (const auto found = by_source.find(source); found != by_source.end()) return found->second;
  const auto only = by_source.find("");
  return only != by_source.end() && num_sources == 1 ? only->second : "";
}

void describe(config::Schema<ValidationConfig>& s) {
  using C = ValidationConfig;
  s.field("every_steps", &C::every_steps, "Steps between two validations; null: none").at_least(1);
  s.field("shards", &C::shards,
          "Held-out shards, by source ({laion: …, mmc4: …}) or of the only source");
  s.field("batches", &C::batches, "A safetensors file of held-out prepared batches instead");
  s.field("max_batches", &C::max_batches,
          "Batches of each source that a rank looks at; null: all there are")
      .at_least(1);
  s.check("every_steps", [](const C& c) {
    if (c.every_steps && !c.batches && c.shards.by_source.empty())
      return "is set, but nothing is held out; set shards or batches beside it";
    if (!c.every_steps && (c.batches || !c.shards.by_source.empty()))
      return "is not set, so the held-out data would never be looked at; set it, or remove shards "
             "and batches";
    return "";
  });
  s.check("batches", [](const C& c) {
    return c.batches && !c.shards.by_source.empty() ? "and shards are both set; keep one of them"
                                                    : "";
  });
}

void describe(config::Schema<UntilConfig>& s) {
  using C = UntilConfig;
  s.field("metric", &C::metric, "What validation measures: val_loss, or that of a source")
      .not_empty();
  s.field("patience", &C::patience, "Validations in a row without a fall that end it").at_least(1);
  s.field("min_delta", &C::min_delta, "What has to be exceeded for a fall to count").at_least(0);
}

void describe(config::Schema<PhaseConfig>& s) {
  using C = PhaseConfig;
  s.field("name", &C::name, "What the phase is called in logs and checkpoints")
      .not_empty()
      .rule("of letters, digits, '_' and '-'", "consist of letters, digits, '_' and '-'",
            [](const std::string& name) {
              return std::all_of(name.begin(), name.end(), [](unsigned char c) {
                return (c < 128 && std::isalnum(c)) || c == '_' || c == '-';
              });
            })
      .required();
  s.field("train", &C::train, "Patterns of the parameters that train").not_empty().required();
  s.field("steps", &C::steps, "Optimizer updates of a turn; null: by until, or up to the run's end")
      .at_least(1);
  s.field("until", &C::until, "Ends a turn, before its steps are done if those are set");
  s.field("lr", &C::lr, "Learning rate; null: that of train.optimizer").more_than(0);
  s.field("weight_decay", &C::weight_decay, "Decay; null: that of train.optimizer").at_least(0);
  s.field("schedule", &C::schedule,
          "The learning rate over the set's own updates; null: train.schedule, over the run's");
  s.field("optimizer_state", &C::optimizer_state,
          "What becomes of the set's optimizer state while it rests");
}

void describe(config::Schema<TrainConfig>& s) {
  using C = TrainConfig;
  s.field("steps", &C::steps, "Number of optimizer updates; null: by epochs").at_least(1);
  s.field("epochs", &C::epochs, "Number of epochs; null: by steps").at_least(1);
  s.field("trainable", &C::trainable, "Patterns of what trains; null: the model's own rule");
  s.field("cycle_phases", &C::cycle_phases,
          "Phases take turns until the run ends; false: each has one turn");
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
  s.section("ema", &C::ema, "An average of the trained weights");
  s.section("validation", &C::validation, "Loss on held-out data");
  s.section("stop", &C::stop, "Ends the run when validation no longer gets better; null: never");
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
