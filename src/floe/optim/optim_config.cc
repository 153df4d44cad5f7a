#include "floe/optim/optim_config.h"

#include <algorithm>
#include <cmath>

#include "floe/core/str.h"
#include "floe/optim/lr_schedule.h"
#include "floe/optim/optimizers/registry.h"
#include "floe/schema/schema.h"

namespace floe::optim {
namespace {

template <class Kind, class Types>
std::vector<std::pair<std::string_view, Kind>> numbered(const Types& types) {
  std::vector<std::pair<std::string_view, Kind>> names;
  for (const auto& type : types) names.emplace_back(type.name, static_cast<Kind>(names.size()));
  return names;
}

// "adamw: two moments of each trainable element; sgd: ..."
template <class Types>
std::string helps(const Types& types) {
  std::vector<std::string> all;
  for (const auto& type : types) all.push_back(str(type.name, ": ", type.help));
  return join(all, "; ");
}

template <class Type>
bool reads(const Type& type, std::string_view key) {
  return std::find(type.keys.begin(), type.keys.end(), key) != type.keys.end();
}

// "linear, cosine or wsd"
template <class Types>
std::string readers(const Types& types, std::string_view key, std::string_view last) {
  std::vector<std::string> names;
  for (const auto& type : types)
    if (reads(type, key)) names.emplace_back(type.name);
  if (names.size() < 2) return join(names);
  const std::string end = names.back();
  names.pop_back();
  return str(join(names), " ", last, " ", end);
}

// A key that only some of the types read. With another type it must keep its default: `with` is
// ("has no effect with adamw"), by the type's name.
template <class C, class F, class Types>
config::Field<F> key_of_some(config::Schema<C>& s, const Types& types, const std::string& key,
                             F C::*member, const std::string& help,
                             std::string (*with)(std::string_view type)) {
  s.check(key, [=, &types](const C& c) -> std::string {
    const auto& type = types[static_cast<std::size_t>(c.type)];
    if (reads(type, key) || c.*member == C{}.*member) return "";
    return str("has no effect with ", with(type.name),
               "; remove it, or set type: ", readers(types, key, "or"), " beside it");
  });
  return s.field(key, member, str("Of ", readers(types, key, "and"), ": ", help));
}

std::string plain_name(std::string_view type) { return std::string(type); }
std::string schedule_name(std::string_view type) { return str("a ", type, " schedule"); }

}  // namespace

std::vector<std::pair<std::string_view, OptimizerKind>> enum_names(OptimizerKind) {
  return numbered<OptimizerKind>(optimizer_types());
}

std::vector<std::pair<std::string_view, ScheduleKind>> enum_names(ScheduleKind) {
  return numbered<ScheduleKind>(schedule_types());
}

void describe(config::Schema<ClipConfig>& s) {
  s.field("norm", &ClipConfig::norm, "Largest global norm of the gradients; null: no limit")
      .more_than(0);
  s.field("value", &ClipConfig::value, "Largest size of a gradient's element; null: no limit")
      .more_than(0);
}

void describe(config::Schema<OptimizerConfig>& s) {
  using C = OptimizerConfig;
  const auto& types = optimizer_types();
  s.field("type", &C::type, "What is kept of each trainable element: " + helps(types));
  s.field("lr", &C::lr, "Learning rate after warm-up").at_least(0);
  key_of_some(s, types, "betas", &C::betas, "how slowly the moments move", plain_name);
  key_of_some(s, types, "eps", &C::eps, "added to the root of the second moment", plain_name)
      .more_than(0);
  s.field("weight_decay", &C::weight_decay,
          "Decay of what `decay` names; a part of the gradient with sgd, else decoupled from it")
      .at_least(0);
  s.field("decay", &C::decay, "Patterns of the parameters that decay; an empty list is all");
  key_of_some(s, types, "momentum", &C::momentum, "more than 0 keeps one moment", plain_name)
      .at_least(0)
      .less_than(1);
  s.field(
       "lr_patterns", &C::lr_patterns,
       "Learning rates of some parameters by pattern, such as {\"perceiver.*\": 1e-5}; lr is that "
       "of the others, and the schedule goes for all")
      .at_least(0);
  s.check("betas", [](const C& c) {
    const auto is_wrong = [](double beta) { return beta < 0 || beta >= 1; };
    return std::any_of(c.betas.begin(), c.betas.end(), is_wrong)
               ? "must be two numbers from 0 up to, but not including, 1"
               : "";
  });
}

void describe(config::Schema<ScheduleConfig>& s) {
  using C = ScheduleConfig;
  const auto& types = schedule_types();
  s.field("type", &C::type, "The rate after the warm-up: " + helps(types));
  s.field("warmup_steps", &C::warmup_steps,
          "Steps in which the rate grows from 0; null: 5% of the steps, at most 5000")
      .at_least(0);
  key_of_some(s, types, "min_lr", &C::min_lr, "the rate at the last step", schedule_name)
      .at_least(0);
  key_of_some(s, types, "decay_steps", &C::decay_steps,
              "steps at the end in which the rate falls; null: 10% of the steps", schedule_name)
      .at_least(1);
}

std::int64_t ScheduleConfig::warmup_of(std::int64_t total_steps) const {
  if (warmup_steps) return *warmup_steps;
  return std::min(kMostWarmup, static_cast<std::int64_t>(
                                   std::floor(kWarmupFraction * static_cast<double>(total_steps))));
}

std::int64_t ScheduleConfig::decay_of(std::int64_t total_steps) const {
  const auto fraction =
      static_cast<std::int64_t>(std::floor(kDecayFraction * static_cast<double>(total_steps)));
  return std::max<std::int64_t>(1, decay_steps.value_or(fraction));
}

void describe(config::Schema<EmaConfig>& s) {
  s.field("decay", &EmaConfig::decay,
          "How slowly an average of the trained weights follows them, such as 0.999; null: none")
      .more_than(0)
      .less_than(1);
}

}  // namespace floe::optim
