// NCCL groups, in builds with CUDA.
#pragma once

#include <c10/core/Device.h>

#include <chrono>

#include "floe/comm/group.h"

namespace c10d {
class Store;
}

namespace floe::comm {

// Whether this build can make NCCL groups.
bool has_nccl();

// Collective: all ranks of the group meet at the store. Throws ConfigError without CUDA.
GroupPtr make_nccl_group(std::string name, const c10::intrusive_ptr<c10d::Store>& store, int rank,
                         int size, std::chrono::milliseconds timeout, c10::Device device);

}  // namespace floe::comm
