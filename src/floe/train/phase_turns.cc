#include "floe/train/phase_turns.h"

#include <algorithm>
#include <cmath>

#include "floe/core/error.h"

namespace floe::train {

PhaseTurns::PhaseTurns(std::vector<PhaseConfig> phases, bool cycle)
    : phases_(std::move(phases)), cycles_(cycle) {
  if (phases_.empty()) phases_.emplace_back();
  updates_.resize(phases_.size());
}

bool PhaseTurns::ended() const {
  const PhaseConfig& phase = phases_[current_];
  return (phase.steps && steps_in_turn_ >= *phase.steps) ||
         (phase.until && without_fall_ >= phase.until->patience);
}

void PhaseTurns::begin_turn(std::size_t phase) {
  current_ = phase;
  steps_in_turn_ = 0;
  best_.reset();
  without_fall_ = 0;
}

void PhaseTurns::advance() {
  ++steps_in_turn_;
  ++updates_[current_];
}

void PhaseTurns::observe(const std::map<std::string, double>& metrics) {
  const auto& until = phases_[current_].until;
  if (!until) return;
  const auto metric = metrics.find(until->metric);
  require<ConfigError>(metric != metrics.end(), "phase '", name(), "' waits for ", until->metric,
                       ", which validation has not measured; hold out samples of that source");
  const double value = metric->second;
  const bool fell = std::isfinite(value) && (!best_ || value < *best_ - until->min_delta);
  if (fell) best_ = value;
  without_fall_ = fell ? 0 : without_fall_ + 1;
}

bool PhaseTurns::pass_on() {
  if (!ended() || is_last()) return false;
  const bool wraps = current_ + 1 == phases_.size();
  if (wraps) ++cycle_;
  begin_turn(wraps ? 0 : current_ + 1);
  return true;
}

std::optional<std::int64_t> PhaseTurns::most_steps() const {
  if (cycles_) return std::nullopt;
  std::int64_t sum = 0;
  for (const PhaseConfig& phase : phases_) {
    if (!phase.steps) return std::nullopt;
    sum += *phase.steps;
  }
  return sum;
}

std::optional<std::int64_t> PhaseTurns::updates_in(std::int64_t total_steps,
                                                   std::size_t phase) const {
  std::int64_t before = 0, all = 0;  // steps of the turns before the phase's, and of all turns
  bool known_before = true, known = true;
  for (std::size_t p = 0; p < phases_.size(); ++p) {
    const bool fixed = phases_[p].steps && !phases_[p].until;
    known = known && fixed;
    if (p < phase) known_before = known_before && fixed;
    if (p < phase) before += phases_[p].steps.value_or(0);
    all += phases_[p].steps.value_or(0);
  }
  const auto& own = phases_[phase].steps;
  if (!cycles_) {
    if (!known_before || (phases_[phase].until && !own)) return own;
    return std::clamp<std::int64_t>(total_steps - before, 0, own.value_or(total_steps));
  }
  if (!known) return std::nullopt;
  return total_steps / all * *own + std::clamp<std::int64_t>(total_steps % all - before, 0, *own);
}

nlohmann::json PhaseTurns::save() const {
  nlohmann::json updates = nlohmann::json::object();
  for (std::size_t p = 0; p < phases_.size(); ++p) updates[name(p)] = updates_[p];
  nlohmann::json saved{{"phase", name()},
                       {"cycle", cycle_},
                       {"steps_in_turn", steps_in_turn_},
                       {"updates", std::move(updates)},
                       {"without_fall", without_fall_}};
  if (best_) saved["best"] = *best_;
  return saved;
}

std::string PhaseTurns::restore(const nlohmann::json& saved) {
  const std::string was = saved.value("phase", "");
  const nlohmann::json updates = saved.value("updates", nlohmann::json::object());
  for (std::size_t p = 0; p < phases_.size(); ++p)
    updates_[p] = updates.value(name(p), std::int64_t{0});
  begin_turn(0);
  const auto found = std::find_if(phases_.begin(), phases_.end(),
                                  [&](const PhaseConfig& phase) { return phase.name == was; });
  if (found == phases_.end())
    return str("the checkpoint was in phase '", was,
               "', which this run does not have; it begins with ", "phase '", name(), "'");
  begin_turn(static_cast<std::size_t>(found - phases_.begin()));
  cycle_ = saved.value("cycle", std::int64_t{0});
  steps_in_turn_ = saved.value("steps_in_turn", std::int64_t{0});
  without_fall_ = saved.value("without_fall", std::int64_t{0});
  if (const auto best = saved.find("best"); best != saved.end()) best_ = best->get<double>();
  return "";
}

}  // namespace floe::train
