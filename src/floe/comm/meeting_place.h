// Where the ranks of a job come together: rank 0 opens a control plane, the others find it.
#pragma once

#include <chrono>
#include <memory>

#include "floe/comm/rendezvous.h"
#include "floe/control/control_plane.h"

namespace floe::comm {

// Collective: `self` says who this rank is; what can only be known here is filled in. Throws
// ConfigError when rank 0 refuses this rank, CommError when ranks do not come in time.
std::shared_ptr<control::ControlPlane> meet(const Rendezvous& rendezvous, control::Member self,
                                            std::chrono::milliseconds timeout);

}  // namespace floe::comm
