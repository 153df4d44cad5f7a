// `floe report`: one HTML page about a run that needs nothing but a browser.
#pragma once

#include <string>

#include "floe/report/run_folder.h"

namespace floe::report {

std::string report_html(const RunFolder& run);

}  // namespace floe::report
