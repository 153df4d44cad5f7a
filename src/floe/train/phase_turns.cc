#include "floe/train/phase_turns.h"

#include <algorithm>

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
         (phase.until && plateau_.reached(*phase.until));
}

void PhaseTurns::begin_turn(std::size_t phase) {
  current_ = phase;
  steps_in_turn_ = 0;
  plateau_ = Plateau();
}

void PhaseTurns::advance() {
  ++steps_in_turn_;
  ++updates_[current_];
}

void PhaseTurns::observe(const std::map<std::string, double>& metrics) {
  if (const auto& until = phases_[current_].until)
    plateau_.observe(*until, updates(), metrics, str("phase '", name(), "'"));
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
                       {"updates", std::move(updates)}};
  plateau_.save(saved);
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
  plateau_ = Plateau::restored(saved);
  return "";
}

}  // namespace floe::train
