#include "floe/train/phases/phase_schedule.h"

#include <algorithm>
#include <cmath>

#include "floe/core/error.h"

namespace floe::train {

void Plateau::observe(const UntilConfig& until, std::int64_t step,
                      const std::map<std::string, double>& metrics, const std::string& who) {
  const auto metric = metrics.find(until.metric);
  require<ConfigError>(metric != metrics.end(), who, " waits for ", until.metric,
                       ", which validation has not measured; hold out samples of that source, or "
                       "look at what was wrong with those of the task");
  const double value = metric->second;
  const double sign = higher_is_better(until.metric) ? -1 : 1;
  const bool fell =
      std::isfinite(value) && (!best_ || sign * value < sign * *best_ - until.min_delta);
  if (fell) {
    best_ = value;
    best_step_ = step;
  }
  without_fall_ = fell ? 0 : without_fall_ + 1;
}

std::string Plateau::text(const UntilConfig& until) const {
  const bool rises = higher_is_better(until.metric);
  std::string text = str(until.metric, rises ? " has not risen " : " has not fallen ");
  if (until.min_delta > 0) text += str("by more than ", until.min_delta, " ");
  text += str("for ", without_fall_, without_fall_ == 1 ? " validation" : " validations");
  if (!best_) return text;
  return str(text, " (", *best_, " after step ", best_step_,
             rises ? " was the highest)" : " was the lowest)");
}

void Plateau::save(nlohmann::json& to) const {
  to["without_fall"] = without_fall_;
  if (!best_) return;
  to["best"] = *best_;
  to["best_step"] = best_step_;
}

Plateau Plateau::restored(const nlohmann::json& saved) {
  Plateau plateau;
  plateau.without_fall_ = saved.value("without_fall", std::int64_t{0});
  plateau.best_step_ = saved.value("best_step", std::int64_t{0});
  if (const auto best = saved.find("best"); best != saved.end() && best->is_number())
    plateau.best_ = best->get<double>();
  return plateau;
}

void EarlyStop::observe(std::int64_t step, const std::map<std::string, double>& metrics) {
  if (until_) plateau_.observe(*until_, step, metrics, "train.stop");
}

nlohmann::json EarlyStop::save() const {
  if (!until_) return nullptr;
  nlohmann::json saved{{"metric", until_->metric}};
  plateau_.save(saved);
  return saved;
}

void EarlyStop::restore(const nlohmann::json& saved) {
  if (!until_ || !saved.is_object() || saved.value("metric", "") != until_->metric) return;
  plateau_ = Plateau::restored(saved);
}

PhaseSchedule::PhaseSchedule(std::vector<PhaseConfig> phases, bool cycle)
    : phases_(std::move(phases)), cycles_(cycle) {
  if (phases_.empty()) phases_.emplace_back();
  updates_.resize(phases_.size());
}

bool PhaseSchedule::ended() const {
  const PhaseConfig& phase = phases_[current_];
  return (phase.steps && steps_in_turn_ >= *phase.steps) ||
         (phase.until && plateau_.reached(*phase.until));
}

void PhaseSchedule::begin_turn(std::size_t phase) {
  current_ = phase;
  steps_in_turn_ = 0;
  plateau_ = Plateau();
}

void PhaseSchedule::count_update() {
  ++steps_in_turn_;
  ++updates_[current_];
}

void PhaseSchedule::observe(const std::map<std::string, double>& metrics) {
  if (const auto& until = phases_[current_].until)
    plateau_.observe(*until, updates(), metrics, str("phase '", name(), "'"));
}

bool PhaseSchedule::advance() {
  if (!ended() || is_last()) return false;
  const bool wraps = current_ + 1 == phases_.size();
  if (wraps) ++cycle_;
  begin_turn(wraps ? 0 : current_ + 1);
  return true;
}

std::optional<std::int64_t> PhaseSchedule::most_steps() const {
  if (cycles_) return std::nullopt;
  std::int64_t sum = 0;
  for (const PhaseConfig& phase : phases_) {
    if (!phase.steps) return std::nullopt;
    sum += *phase.steps;
  }
  return sum;
}

std::optional<std::int64_t> PhaseSchedule::updates_in(std::int64_t total_steps,
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

nlohmann::json PhaseSchedule::save() const {
  nlohmann::json updates = nlohmann::json::object();
  for (std::size_t p = 0; p < phases_.size(); ++p) updates[name(p)] = updates_[p];
  nlohmann::json saved{{"phase", name()},
                       {"cycle", cycle_},
                       {"steps_in_turn", steps_in_turn_},
                       {"updates", std::move(updates)}};
  plateau_.save(saved);
  return saved;
}

std::string PhaseSchedule::restore(const nlohmann::json& saved) {
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
