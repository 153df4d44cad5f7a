// Collectives over Gloo's connections.
//
// Note [Direct collectives]
// Gloo's own all-gather and reduce-scatter go through full-size temporaries, and its reduce-scatter
// moves as much as an all-reduce. For CPU tensors floe sends slices straight from one rank's tensor
// into the other's with Gloo's send and receive: an all-gather needs no extra memory, a
// reduce-scatter a constant window (two chunks per peer), and each rank sends exactly (W-1)/W of the
// tensor. CUDA tensors, for which Gloo has no send, take Gloo's own collectives.
// `abort` reaches sends and receives at once; one of Gloo's own collectives that is under way (a
// broadcast) ends with the timeout.
#pragma once

#include <chrono>

#include "floe/comm/group.h"

namespace c10d {
class Store;
}

namespace floe::comm {

// Collective: all ranks of the group meet at the store. `interface_hint` is the rendezvous host; a
// loopback host keeps the traffic on the loopback device.
GroupPtr make_gloo_group(std::string name, const c10::intrusive_ptr<c10d::Store>& store, int rank,
                         int size, std::chrono::milliseconds timeout,
                         const std::string& interface_hint);

}  // namespace floe::comm
