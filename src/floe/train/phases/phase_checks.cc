#include "floe/train/phases/phase_checks.h"

#include <algorithm>
#include <limits>
#include <set>

#include "floe/config/schema.h"
#include "floe/train/phases/phase_schedule.h"
#include "floe/train/reporting/metric_names.h"

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

// Why the end of `what` ("'a' train until", "the run go on until") cannot be found; empty: it can.
std::string plateau_problem(const RunConfig& c, const UntilConfig& until, const std::string& what) {
  if (!c.train.validation.every_steps)
    return str("lets ", what, " ", until.metric,
               " stops falling, but there is no validation; set train.validation");
  const std::vector<std::string> known = validation_metrics(c);
  if (std::find(known.begin(), known.end(), until.metric) != known.end()) return "";
  return str("lets ", what, " ", until.metric, " stops falling, which validation does not measure",
             metrics_there_are(until.metric, known));
}

std::string until_problem(const RunConfig& c) {
  for (const PhaseConfig& phase : c.phases) {
    if (!phase.until) continue;
    const std::string problem =
        plateau_problem(c, *phase.until, str("'", phase.name, "' train until"));
    if (!problem.empty()) return problem;
  }
  return "";
}

std::string stop_problem(const RunConfig& c) {
  return c.train.stop ? plateau_problem(c, *c.train.stop, "the run go on until") : "";
}

constexpr const char* kLowerMinLr = "; lower min_lr, or raise lr";

std::string min_lr_problem(const RunConfig& c) {
  const double min_lr = c.train.schedule.min_lr, lr = c.train.optimizer.lr;
  if (!c.phases.empty() || min_lr <= lr) return "";
  return str("has schedule.min_lr ", min_lr, ", more than optimizer.lr, which is ", lr,
             kLowerMinLr);
}

std::string min_lr_of_phases_problem(const RunConfig& c) {
  for (const PhaseConfig& phase : c.phases) {
    const double min_lr = phase.schedule.value_or(c.train.schedule).min_lr;
    const double lr = phase.lr.value_or(c.train.optimizer.lr);
    if (min_lr > lr)
      return str("lets '", phase.name, "' end at ", phase.schedule ? "its" : "train.schedule.",
                 phase.schedule ? " min_lr " : "min_lr ", min_lr, ", more than ",
                 phase.lr ? "its lr" : "train.optimizer.lr", ", which is ", lr, kLowerMinLr);
  }
  return "";
}

// A rate that falls needs to know until where.
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
          "' that falls until the set's last update, but until makes it unknown which one that "
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
  s.check("train", stop_problem);
  s.check("train", min_lr_problem);
  s.check("phases", min_lr_of_phases_problem);
  s.check("phases", schedule_problem);
}

}  // namespace floe::train
