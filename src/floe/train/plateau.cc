#include "floe/train/plateau.h"

#include <cmath>

#include "floe/core/error.h"

namespace floe::train {

void Plateau::observe(const UntilConfig& until, std::int64_t step,
                      const std::map<std::string, double>& metrics, const std::string& who) {
  const auto metric = metrics.find(until.metric);
  require<ConfigError>(metric != metrics.end(), who, " waits for ", until.metric,
                       ", which validation has not measured; hold out samples of that source");
  const double value = metric->second;
  const bool fell = std::isfinite(value) && (!best_ || value < *best_ - until.min_delta);
  if (fell) {
    best_ = value;
    best_step_ = step;
  }
  without_fall_ = fell ? 0 : without_fall_ + 1;
}

std::string Plateau::text(const UntilConfig& until) const {
  std::string text = str(until.metric, " has not fallen ");
  if (until.min_delta > 0) text += str("by more than ", until.min_delta, " ");
  text += str("for ", without_fall_, without_fall_ == 1 ? " validation" : " validations");
  if (!best_) return text;
  return str(text, " (", *best_, " after step ", best_step_, " was the lowest)");
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

}  // namespace floe::train
