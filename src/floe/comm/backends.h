// The groups there are: over Gloo, over NCCL, and one rank that acts alone.
//
// Note [Direct collectives]
// Gloo's own all-gather and reduce-scatter go through full-size temporaries, and its reduce-scatter
// moves as much as an all-reduce. For CPU tensors floe sends slices straight from one rank's tensor
// into the other's, with Gloo's send and receive or, on one host, as in Note [Memory of one host]:
// an all-gather needs no extra memory, a reduce-scatter a constant window (four chunks per peer),
// and each rank sends exactly (W-1)/W of the tensor. CUDA tensors, for which Gloo has no send, take
// Gloo's own collectives.
// What is closed to other processes, such as pinned memory, any collective copies before ranks of
// this host read it, and keeps the copies until they have: an all-gather this rank's slice, a
// reduce-scatter the slices of the others, (W-1)/W of its input, an all-reduce the whole tensor,
// and a broadcast the whole tensor on each rank that passes it on.
// `abort` reaches sends and receives at once; one of Gloo's own collectives that is under way ends
// with the timeout.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "floe/comm/group.h"

namespace c10d {
class Store;
}

namespace floe::comm {

// Where a rank can be reached by the others of its group.
struct NetworkPlace {
  std::string interface;  // a device, such as eth0; wins. GLOO_SOCKET_IFNAME wins over both
  std::string address;    // of this host
};
// Collective: all ranks of the group meet at the store.
// `names` are those of its ranks, for messages; `here` the ranks of this host, which all of them
// say alike (see Note [Memory of one host]).
GroupPtr make_gloo_group(std::string name, const c10::intrusive_ptr<c10d::Store>& store, int rank,
                         std::vector<std::string> names, const std::vector<int>& here,
                         std::chrono::milliseconds timeout, const NetworkPlace& place);

// What FLOE_SAME_HOST_MEMORY says: whether this rank and others of its host may read each other's
// memory. Throws ConfigError unless that is 0, 1 or nothing.
bool wants_memory_of_host();

// What keeps ranks of this host from reading each other's memory (see Note [Memory of one host])
// and what would change that; nothing: they will, as far as one process can tell. Throws
// ConfigError for a wrong FLOE_SAME_HOST_MEMORY.
struct ClosedMemory {
  std::string cause, advice;
};
std::optional<ClosedMemory> closed_memory();
// Whether those of them alone do that which a launcher has started that stays (ptrace_scope 1).
bool memory_needs_launcher();

// Whether this build can make NCCL groups.
bool has_nccl();

// Collective: all ranks of the group meet at the store. Throws ConfigError without CUDA.
GroupPtr make_nccl_group(std::string name, const c10::intrusive_ptr<c10d::Store>& store, int rank,
                         int size, std::chrono::milliseconds timeout, c10::Device device);

// One process that acts as rank r of W, for planning, memory tests and measuring one rank of many
// on one device. Collectives copy as many bytes as real ones would deliver, and behave as if every
// other rank held the same data as this one; with a listener nothing is copied. `stride`: between
// its ranks.
GroupPtr make_fake_group(std::string name, int rank, int size, int stride = 1,
                         FakeListener listener = nullptr);

}  // namespace floe::comm
