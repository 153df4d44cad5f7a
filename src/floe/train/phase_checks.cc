#include "floe/train/phase_checks.h"

#include <algorithm>
#include <limits>
#include <set>

#include "floe/config/schema.h"
#include "floe/core/names.h"
#include "floe/train/phase_turns.h"

namespace floe::train {
namespace {

std::string names_problem(const RunConfig& c) {
  std::set<std::string> known;
  for (const PhaseConfig& phase : c.phases)
    if (!known.insert(phase.name).second)
      return str("has two entries called '", phase.name, "'; give each a name of its own");
  return "";
}

std::string trainable_problem(const RunConfig& c) {
  return !c.phases.empty() && c.train.trainable
             ? "and train.trainable both say what trains; keep one of them"
             : "";
}

std::string cycle_problem(const RunConfig& c) {
  if (!c.train.cycle_phases || c.phases.size() > 1) return "";
  return str("has cycle_phases, but there ", c.phases.empty() ? "are no phases" : "is one phase",
             "; remove it, or list two phases or more");
}

// A phase that others come after has to end.
std::string ends_problem(const RunConfig& c) {
  for (std::size_t p = 0; p < c.phases.size(); ++p) {
    const PhaseConfig& phase = c.phases[p];
    const bool followed = c.train.cycle_phases || p + 1 < c.phases.size();
    if (followed && !phase.steps && !phase.until)
      return str("has no end for '", phase.name, "', so that no other would have a turn after it; ",
                 "set its steps or until");
  }
  return "";
}

std::string steps_problem(const RunConfig& c) {
  const auto most = PhaseTurns(c.phases, c.train.cycle_phases).most_steps();
  if (!c.train.steps && !c.train.epochs && !most) {
    if (c.phases.empty()) return "says neither steps nor epochs; set train.steps or train.epochs";
    return str("says neither steps nor epochs, and the phases ",
               c.train.cycle_phases ? "are a cycle without an end" : "do not all have steps",
               "; set train.steps or train.epochs");
  }
  // The steps of a single phase have always been those of the run.
  if (c.phases.size() > 1 && c.train.steps && most && *c.train.steps > *most)
    return str("has ", *c.train.steps, " steps, but the phases end after ", *most,
               "; lower train.steps, leave steps out of the last phase, or set train.cycle_phases");
  return "";
}

std::string until_problem(const RunConfig& c) {
  std::vector<std::string> known{"val_loss"};
  const std::vector<std::string> sources =
      c.data.batches ? std::vector<std::string>{"laion", "mmc4", "text"} : c.data.sources();
  for (const std::string& source : sources)
    for (const char* what : {"val_loss_", "val_perplexity_"}) known.push_back(what + source);
  for (const PhaseConfig& phase : c.phases) {
    if (!phase.until) continue;
    if (!c.train.validation.every_steps)
      return str("lets '", phase.name, "' train until ", phase.until->metric,
                 " stops falling, but there is no validation; set train.validation");
    if (std::find(known.begin(), known.end(), phase.until->metric) == known.end()) {
      const std::string near = did_you_mean(phase.until->metric, known);
      return str("lets '", phase.name, "' wait for ", phase.until->metric,
                 ", which validation does not measure",
                 near.empty() ? str("; it measures ", join(known)) : near);
    }
  }
  return "";
}

// A rate that falls to 0 needs to know where.
std::string schedule_problem(const RunConfig& c) {
  const PhaseTurns turns(c.phases, c.train.cycle_phases);
  // Which phases have a known number of updates does not depend on how many steps there are.
  const std::int64_t any = std::numeric_limits<std::int32_t>::max();
  for (std::size_t p = 0; p < c.phases.size(); ++p) {
    const auto& schedule = c.phases[p].schedule;
    if (!schedule || schedule->type == ScheduleConfig::Type::constant) continue;
    if (!turns.updates_in(any, p))
      return str(
          "has a schedule for '", c.phases[p].name,
          "' that falls to 0 at the set's last update, but until makes it unknown which one that "
          "is; use a constant schedule, or ",
          c.train.cycle_phases ? "steps without until" : "set its steps");
  }
  return "";
}

}  // namespace

void describe_phase_checks(config::Schema<RunConfig>& s) {
  s.check("train", steps_problem);
  s.check("train", cycle_problem);
  s.check("phases", names_problem);
  s.check("phases", trainable_problem);
  s.check("phases", ends_problem);
  s.check("phases", until_problem);
  s.check("phases", schedule_problem);
}

}  // namespace floe::train
