// Whether a metric of validation has stopped falling: what ends a phase (`until`) or a run (`stop`).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "floe/config/train.h"

namespace floe::train {

class Plateau {
 public:
  // A validation after update `step`. A value that is not finite has not fallen. Throws ConfigError when
  // the metric was not measured; `who` waits for it.
  void observe(const UntilConfig& until, std::int64_t step,
               const std::map<std::string, double>& metrics, const std::string& who);
  bool reached(const UntilConfig& until) const { return without_fall_ >= until.patience; }
  // "val_loss has not fallen for 3 validations (2.31 after step 90 was the lowest)"
  std::string text(const UntilConfig& until) const;

  // As keys of an object.
  void save(nlohmann::json& to) const;
  static Plateau restored(const nlohmann::json& saved);

 private:
  std::optional<double> best_;  // nothing before the first validation
  std::int64_t best_step_ = 0;
  std::int64_t without_fall_ = 0;  // validations since
};

// `train.stop` at work. All ranks come to the same end: nothing here depends on a rank.
class EarlyStop {
 public:
  // Null: never.
  explicit EarlyStop(std::optional<UntilConfig> until) : until_(std::move(until)) {}

  void observe(std::int64_t step, const std::map<std::string, double>& metrics);
  bool reached() const { return until_ && plateau_.reached(*until_); }
  // Why, when it is reached.
  std::string reason() const { return plateau_.text(*until_); }

  // What a checkpoint holds of it: null where the run never stops early.
  nlohmann::json save() const;
  // What was saved, by a run that waited for the same metric; else it begins anew.
  void restore(const nlohmann::json& saved);

 private:
  std::optional<UntilConfig> until_;
  Plateau plateau_;
};

}  // namespace floe::train
