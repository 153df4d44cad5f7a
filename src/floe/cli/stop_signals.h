// Ctrl-C and SIGTERM for commands that end their work in order.
#pragma once

#include <atomic>

namespace floe::cli {

// From now on the first signal only sets the flag that is returned; a second one ends the process.
const std::atomic<bool>& stop_on_signals();

}  // namespace floe::cli
