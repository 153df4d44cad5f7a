// When a phase or a run ends, and which phase comes next.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "floe/train/train_config.h"

namespace floe::train {

// Whether a metric of validation has stopped getting better: what ends a phase (`until`) or a run
// (`stop`). A fall is a rise where higher is better.
class Plateau {
 public:
  // A validation after update `step`. A value that is not finite has not fallen. Throws ConfigError
  // when the metric was not measured; `who` waits for it.
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

// Which phase trains when: one after the other, once or in a cycle.
//
//   PhaseSchedule schedule(config.phases, config.train.cycle_phases);
//   while (!schedule.over()) {
//     ...train the set of phase schedule.current()...
//     schedule.count_update();   // a skipped step is none
//     if (validated) schedule.observe(metrics);
//     schedule.advance();        // to the next phase, when the turn of this one is over
//   }
//
// All ranks come to the same turns: nothing here depends on a rank.
class PhaseSchedule {
 public:
  // Without phases there is one that has no name and no end.
  PhaseSchedule(std::vector<PhaseConfig> phases, bool cycle);

  std::size_t size() const { return phases_.size(); }
  std::size_t current() const { return current_; }
  const std::string& name(std::size_t phase) const { return phases_[phase].name; }
  const std::string& name() const { return name(current_); }
  // How often all phases have had their turn.
  std::int64_t cycle() const { return cycle_; }
  // Updates since the turn began.
  std::int64_t steps_in_turn() const { return steps_in_turn_; }
  // Updates of a phase's set so far, in all its turns.
  std::int64_t updates(std::size_t phase) const { return updates_[phase]; }
  // ... of all of them.
  std::int64_t updates() const { return std::accumulate(updates_.begin(), updates_.end(), 0LL); }

  // The current set was updated.
  void count_update();
  // A validation after the last update. Throws ConfigError when it has not measured what the phase
  // waits for.
  void observe(const std::map<std::string, double>& metrics);
  // On to the next phase if the turn of this one is over, and whether it was. The last phase of a
  // run without cycles keeps its turn.
  bool advance();
  // Every phase has had its only turn.
  bool over() const { return ended() && is_last(); }

  // Updates of all phases together, at most; nothing in a cycle, or where a phase has no steps.
  std::optional<std::int64_t> most_steps() const;
  // Updates that a phase makes in a run of so many steps: at most, where `until` may end the
  // phase's only turn earlier; nothing when it depends on how long others wait.
  std::optional<std::int64_t> updates_in(std::int64_t total_steps, std::size_t phase) const;

  nlohmann::json save() const;
  // What was saved, also by a run with other lengths. Returns a sentence when the current phase of
  // that run is none of this one, so that the phases begin anew; else nothing.
  std::string restore(const nlohmann::json& saved);

 private:
  bool ended() const;
  bool is_last() const { return !cycles_ && current_ + 1 == phases_.size(); }
  void begin_turn(std::size_t phase);

  std::vector<PhaseConfig> phases_;
  bool cycles_;
  std::size_t current_ = 0;
  std::int64_t cycle_ = 0;
  std::int64_t steps_in_turn_ = 0;
  std::vector<std::int64_t> updates_;  // of each phase
  Plateau plateau_;                    // of `until`, in this turn
};

}  // namespace floe::train
