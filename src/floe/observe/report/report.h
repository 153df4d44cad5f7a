// `floe report`: one HTML page about a run that needs nothing but a browser.
#pragma once

#include <string>

#include "floe/observe/report/logged_run.h"

namespace floe::report {

std::string report_html(const LoggedRun& run);

}  // namespace floe::report
