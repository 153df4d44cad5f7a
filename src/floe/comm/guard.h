// The frame around a rank's work: how a failure is told.
#pragma once

#include <functional>

#include "floe/comm/world.h"

namespace floe::comm {

// Runs the work and returns the exit code of the process. A rank that fails logs its cause and leaves
// it on the blackboard; a rank whose collective failed because of another one logs that rank's cause
// beside its own.
int guarded(World& world, const std::function<void()>& work);

}  // namespace floe::comm
