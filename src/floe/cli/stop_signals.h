// Signals for commands that end their work in order.
#pragma once

#include <atomic>

#include "floe/train/run_signals.h"

namespace floe::cli {

// From now on the first Ctrl-C or SIGTERM only sets the flag that is returned; a second one ends the
// process.
const std::atomic<bool>& stop_on_signals();

// What signals ask of a run from now on. Ctrl-C, SIGTERM and SIGHUP stop it after the step under way,
// with a checkpoint; SIGUSR1 lets it save and go on; SIGPIPE (nobody reads its output any more) is
// nothing. Schedulers and launchers send SIGTERM to everybody, and to some twice: repeats change
// nothing. A person's second Ctrl-C, half a second or more after the first, ends the process at once.
// What nohup and the like ignore stays ignored.
train::RunSignals& signals_of_a_run();

}  // namespace floe::cli
