#include "floe/train/phases/phases.h"

#include <algorithm>
#include <cmath>

#include "floe/comm/world.h"
#include "floe/core/log.h"
#include "floe/core/names.h"
#include "floe/optim/optimizers/registry.h"
#include "floe/shard/plan/plan.h"

namespace floe::train {
namespace {

shard::Rest rest_of(PhaseConfig::OptimizerState state) {
  switch (state) {
    case PhaseConfig::OptimizerState::keep: return shard::Rest::keep;
    case PhaseConfig::OptimizerState::offload: return shard::Rest::offload;
    case PhaseConfig::OptimizerState::drop: return shard::Rest::drop;
  }
  return shard::Rest::keep;
}

// Whether a pattern names a parameter of those that count.
template <class Counts>
bool names_any(const shard::Engine& engine, const std::string& pattern, const Counts& counts) {
  const auto matches = [&](const std::string& name) { return glob_match(pattern, name); };
  return std::any_of(
      engine.plan().parameters.begin(), engine.plan().parameters.end(),
      [&](const shard::PlannedParameter& parameter) {
        const auto& others = parameter.other_names;
        return counts(parameter) &&
               (matches(parameter.name) || std::any_of(others.begin(), others.end(), matches));
      });
}

// Patterns are of the whole run: those that name nothing of this set, but something of another, are
// for that one. What names nothing at all stays, for the optimizer to complain about.
bool is_for_others(const shard::Engine& engine, std::size_t set, const std::string& pattern) {
  const auto of_set = [&](const auto& parameter) { return parameter.trains_in(set); };
  const auto of_any = [](const auto& parameter) { return parameter.trainable; };
  return !names_any(engine, pattern, of_set) && names_any(engine, pattern, of_any);
}

// A set that no pattern is for does not decay, unless its phase asks for a decay. The default
// pattern is that of a Flamingo: where it names nothing, everything decays.
optim::DecayRule decay_of(const optim::OptimizerConfig& config, const PhaseConfig* phase,
                          const shard::Engine& engine, std::size_t set) {
  const bool asked = phase && phase->weight_decay;
  optim::DecayRule rule{asked ? *phase->weight_decay : config.weight_decay, config.decay};
  if (config.decay == optim::OptimizerConfig{}.decay) {
    const std::string& flamingo = config.decay.front();
    if (names_any(engine, flamingo, [&](const auto& p) { return p.trains_in(set); })) return rule;
    if (is_for_others(engine, set, flamingo) && !asked) return {};
    rule.patterns.clear();
    return rule;
  }
  std::erase_if(rule.patterns,
                [&](const std::string& pattern) { return is_for_others(engine, set, pattern); });
  if (rule.patterns.empty() && !config.decay.empty()) {
    require<ConfigError>(
        !asked, "phase '", phase ? phase->name : "",
        "' has a weight_decay, but train.optimizer.decay names nothing that it trains");
    return {};
  }
  return rule;
}

optim::RateRule rates_of(const optim::OptimizerConfig& config, const shard::Engine& engine,
                         std::size_t set) {
  optim::RateRule rule{config.lr_patterns};
  std::erase_if(rule.patterns,
                [&](const auto& entry) { return is_for_others(engine, set, entry.first); });
  return rule;
}

// What the start of a run says of a warm-up whose length nobody has set.
std::string warmup_text(const optim::LrSchedule& schedule, const std::string& phase) {
  const std::string what = phase.empty() ? "warm-up" : str("warm-up of phase '", phase, "'");
  const char* steps = phase.empty() ? " steps" : " updates";
  const std::string key =
      phase.empty() ? "train.schedule.warmup_steps" : "its schedule.warmup_steps";
  const std::string percent = str(std::lround(100 * optim::ScheduleConfig::kWarmupFraction), "%");
  if (schedule.total_steps == 0)
    return str(what, ": none (", key, " is not set, and how long it trains is not known)");
  if (schedule.warmup_steps == 0)
    return str(what, ": none (", percent, " of ", schedule.total_steps, steps,
               " is less than one; ", key, " is not set)");
  const bool most = schedule.warmup_steps == optim::ScheduleConfig::kMostWarmup;
  return str(what, ": ", schedule.warmup_steps, " of ", schedule.total_steps, steps, " (",
             most ? str("at most ", percent) : percent, ", ", key, " is not set)");
}

std::unique_ptr<optim::Optimizer> make_optimizer(const optim::OptimizerConfig& config,
                                                 const PhaseConfig* phase, shard::Engine& engine,
                                                 std::size_t set) {
  return optim::make_optimizer(config, engine, set, decay_of(config, phase, engine, set),
                               rates_of(config, engine, set));
}

}  // namespace

std::vector<shard::ParameterSet> parameter_sets(const std::vector<PhaseConfig>& phases) {
  std::vector<shard::ParameterSet> sets;
  for (const PhaseConfig& phase : phases)
    sets.push_back({phase.name, phase.train, rest_of(phase.optimizer_state)});
  return sets;
}

Phases::Phases(const RunConfig& config, shard::Engine& engine)
    : config_(config), engine_(engine), schedule_(config.phases, config.train.cycle_phases) {
  const optim::OptimizerConfig& optimizer = config.train.optimizer;
  for (std::size_t set = 0; set < schedule_.size(); ++set) {
    const PhaseConfig* phase = config.phases.empty() ? nullptr : &config.phases[set];
    optimizers_.push_back(make_optimizer(optimizer, phase, engine, set));
    optimizers_.back()->set_first_lr(phase ? phase->lr.value_or(optimizer.lr) : optimizer.lr);
  }
}

std::vector<optim::Optimizer*> Phases::optimizers() const {
  std::vector<optim::Optimizer*> all;
  for (const auto& optimizer : optimizers_) all.push_back(optimizer.get());
  return all;
}

void Phases::plan_rates(std::int64_t total_steps) {
  rates_.clear();
  bool logged = false;  // the warm-up of the run, which several sets may follow
  for (std::size_t set = 0; set < schedule_.size(); ++set) {
    const auto own = config_.phases.empty() ? std::nullopt : config_.phases[set].schedule;
    const optim::ScheduleConfig& schedule = own ? *own : config_.train.schedule;
    const std::int64_t steps =
        own ? schedule_.updates_in(total_steps, set).value_or(0) : total_steps;
    rates_.push_back({optim::make_schedule(schedule, steps, base_lr(set)), own.has_value()});
    if (schedule.warmup_steps || engine_.world().rank() != 0 || (!own && logged)) continue;
    log::info(warmup_text(rates_.back().schedule, own ? schedule_.name(set) : ""));
    logged = logged || !own;
  }
}

double Phases::base_lr(std::size_t set) const {
  const double otherwise = config_.train.optimizer.lr;
  return config_.phases.empty() ? otherwise : config_.phases[set].lr.value_or(otherwise);
}

double Phases::schedule_factor(std::int64_t step) const {
  const std::size_t set = engine_.active_set();
  const Rate& rate = rates_[set];
  return rate.schedule.factor(rate.over_own_updates ? schedule_.updates(set) : step);
}

double Phases::lr(std::int64_t step) const { return base_lr() * schedule_factor(step); }

void Phases::update(std::int64_t step, double factor) {
  optimizer().step(lr(step), factor, schedule_factor(step));
  schedule_.count_update();
}

nlohmann::json Phases::save() const {
  return config_.phases.empty() ? nlohmann::json() : schedule_.save();
}

void Phases::restore(const nlohmann::json& saved) {
  if (config_.phases.empty()) return;
  const std::string problem =
      saved.is_object() ? schedule_.restore(saved)
                        : str("the checkpoint is of a run without phases; it begins with phase '",
                              schedule_.name(), "'");
  if (!problem.empty() && engine_.world().rank() == 0) log::warn(problem);
  if (engine_.active_set() != schedule_.current()) engine_.activate(schedule_.current());
}

}  // namespace floe::train
