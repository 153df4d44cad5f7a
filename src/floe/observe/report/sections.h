// The parts of the report, each as HTML; empty where a run has nothing to show.
#pragma once

#include <string>

#include "floe/observe/report/logged_run.h"

namespace floe::report {

std::string summary_section(const RunFolder& run);
std::string curve_sections(const RunFolder& run);
std::string phase_section(const RunFolder& run);
std::string memory_section(const RunFolder& run);
std::string unit_section(const RunFolder& run);
std::string time_section(const RunFolder& run);
std::string settings_section(const RunFolder& run);
std::string log_section(const RunFolder& run);
std::string problem_section(const RunFolder& run);

}  // namespace floe::report
