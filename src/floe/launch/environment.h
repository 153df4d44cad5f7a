// What the environment tells a launched rank about itself.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace floe::launch {

using Variables = std::vector<std::pair<std::string, std::string>>;

// torchrun's names (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
// FLOE_LAUNCHED=1, and OMP_NUM_THREADS as this rank's part of the cores unless it is set already.
// `prefixed`: the launcher shows the rank in front of each line, so the logger need not.
Variables rank_environment(int rank, int world_size, int port, bool prefixed);

// This process's environment as "NAME=value" strings, with `variables` on top; later ones win.
std::vector<std::string> merged_environment(const Variables& variables);

// A TCP port that was free a moment ago, from below the range that the kernel gives to outgoing
// connections, so that none of those takes it before rank 0 listens.
int free_port();

}  // namespace floe::launch
