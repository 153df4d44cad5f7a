// This machine's name.
#pragma once

#include <string>

namespace floe::metrics {

std::string host_name();

}  // namespace floe::metrics
