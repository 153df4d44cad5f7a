// The parts of the report that have files of their own, each as HTML; empty where a run has nothing
// to show.
#pragma once

#include <string>

#include "floe/observe/report/logged_run.h"

namespace floe::report {

// Every value over the steps, by subject.
std::string curve_sections(const LoggedRun& run);
// What `floe eval` has found of the run's checkpoints.
std::string score_section(const LoggedRun& run);
// Which phase trained when, and whose memory it was before and after each switch.
std::string phase_section(const LoggedRun& run);

}  // namespace floe::report
