// Named moments of a save at which a test can end the process the hard way.
#pragma once

namespace floe::checkpoint {

// Kills this process (SIGKILL) when the environment has FLOE_TEST_STOP_AT=NAME, or NAME@RANK for one
// rank; with FLOE_TEST_STOP_AFTER=N at the N-th time (from 1).
void stop_point(const char* name);

}  // namespace floe::checkpoint
