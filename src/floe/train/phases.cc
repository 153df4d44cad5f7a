#include "floe/train/phases.h"

#include <algorithm>

#include "floe/core/log.h"
#include "floe/core/names.h"

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

// For a rate that begins at `lr`.
optim::LrSchedule schedule_of(const ScheduleConfig& config, std::int64_t total_steps, double lr) {
  return {static_cast<optim::LrSchedule::Kind>(config.type), config.warmup_of(total_steps),
          total_steps, lr > 0 ? std::min(1.0, config.min_lr / lr) : 0};
}

// Patterns of what decays are of the whole run: those that name nothing of this set are for others.
// A set that none is for does not decay, unless its phase asks for a decay. The default pattern is that
// of a Flamingo: where it names nothing, everything decays. What names nothing at all stays, for the
// optimizer to complain about.
optim::DecayRule decay_of(const OptimizerConfig& config, const PhaseConfig* phase,
                          const shard::Engine& engine, std::size_t set) {
  const auto any_matches = [&](const std::string& pattern, auto&& counts) {
    const auto matches = [&](const std::string& name) { return glob_match(pattern, name); };
    for (const auto& parameter : engine.plan().parameters) {
      const auto& others = parameter.other_names;
      if (counts(parameter) &&
          (matches(parameter.name) || std::any_of(others.begin(), others.end(), matches)))
        return true;
    }
    return false;
  };
  const auto of_set = [&](const auto& parameter) { return parameter.trains_in(set); };
  const auto of_any = [](const auto& parameter) { return parameter.trainable; };

  const bool asked = phase && phase->weight_decay;
  optim::DecayRule rule{asked ? *phase->weight_decay : config.weight_decay, config.decay};
  if (config.decay == OptimizerConfig{}.decay) {
    const std::string& flamingo = config.decay.front();
    if (any_matches(flamingo, of_set)) return rule;
    if (any_matches(flamingo, of_any) && !asked) return {};
    rule.patterns.clear();
    return rule;
  }
  std::erase_if(rule.patterns, [&](const std::string& pattern) {
    return !any_matches(pattern, of_set) && any_matches(pattern, of_any);
  });
  if (rule.patterns.empty() && !config.decay.empty()) {
    require<ConfigError>(
        !asked, "phase '", phase ? phase->name : "",
        "' has a weight_decay, but train.optimizer.decay names nothing that it trains");
    return {};
  }
  return rule;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerConfig& config,
                                                 const optim::DecayRule& decay,
                                                 shard::Engine& engine, std::size_t set) {
  if (config.type == OptimizerConfig::Type::sgd)
    return std::make_unique<optim::Sgd>(engine, optim::SgdOptions{config.momentum, decay}, set);
  return std::make_unique<optim::AdamW>(
      engine, optim::AdamWOptions{config.betas[0], config.betas[1], config.eps, decay}, set);
}

}  // namespace

std::vector<shard::ParameterSet> parameter_sets(const std::vector<PhaseConfig>& phases) {
  std::vector<shard::ParameterSet> sets;
  for (const PhaseConfig& phase : phases)
    sets.push_back({phase.name, phase.train, rest_of(phase.optimizer_state)});
  return sets;
}

Phases::Phases(const RunConfig& config, shard::Engine& engine)
    : config_(config), engine_(engine), turns_(config.phases, config.train.cycle_phases) {
  const OptimizerConfig& optimizer = config.train.optimizer;
  for (std::size_t set = 0; set < turns_.size(); ++set) {
    const PhaseConfig* phase = config.phases.empty() ? nullptr : &config.phases[set];
    optimizers_.push_back(
        make_optimizer(optimizer, decay_of(optimizer, phase, engine, set), engine, set));
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
  for (std::size_t set = 0; set < turns_.size(); ++set) {
    const auto own = config_.phases.empty() ? std::nullopt : config_.phases[set].schedule;
    const std::int64_t steps =
        own ? turns_.updates_in(total_steps, set).value_or(0) : total_steps;
    rates_.push_back({schedule_of(own.value_or(config_.train.schedule), steps, base_lr(set)),
                      own.has_value()});
  }
}

double Phases::base_lr(std::size_t set) const {
  const double otherwise = config_.train.optimizer.lr;
  return config_.phases.empty() ? otherwise : config_.phases[set].lr.value_or(otherwise);
}

double Phases::lr(std::int64_t step) const {
  const std::size_t set = engine_.active_set();
  const Rate& rate = rates_[set];
  return base_lr(set) * rate.schedule.factor(rate.over_own_updates ? turns_.updates(set) : step);
}

void Phases::update(double lr, double factor) {
  optimizer().step(lr, factor);
  turns_.advance();
}

nlohmann::json Phases::save() const {
  return config_.phases.empty() ? nlohmann::json() : turns_.save();
}

void Phases::restore(const nlohmann::json& saved) {
  if (config_.phases.empty()) return;
  const std::string problem =
      saved.is_object() ? turns_.restore(saved)
                        : str("the checkpoint is of a run without phases; it begins with phase '",
                              turns_.name(), "'");
  if (!problem.empty() && engine_.world().rank() == 0) log::warn(problem);
  if (engine_.active_set() != turns_.current()) engine_.activate(turns_.current());
}

}  // namespace floe::train
