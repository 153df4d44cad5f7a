// What the environment tells a launched rank about itself.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace floe::launch {

using Variables = std::vector<std::pair<std::string, std::string>>;

// torchrun's names (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
// FLOE_LAUNCHED=1, FLOE_JOB_ID=`job` unless that is empty, and OMP_NUM_THREADS as this rank's part
// of the cores unless it is set already.
// `prefixed`: the launcher shows the rank in front of each line, so the logger need not.
Variables rank_environment(int rank, int world_size, int port, bool prefixed,
                           const std::string& job = "");

// A name for the ranks of one launch that no other launch has.
std::string new_job_id();

// This process's environment as "NAME=value" strings, with `variables` on top; later ones win. What
// a torchrun around this process has told about its own ranks (TORCHELASTIC_...) is left out.
std::vector<std::string> merged_environment(const Variables& variables);

// A TCP port that was free a moment ago, from outside of the range that the kernel gives to
// outgoing connections, so that none of those takes it before rank 0 listens.
int free_port();

struct PortRange {
  int first = 0, last = 0;
};
// Where free_port looks: 10000 to 32000, less what is in `ephemeral`, two numbers as in
// /proc/sys/net/ipv4/ip_local_port_range. Where that leaves next to nothing, 10000 to 32000.
PortRange ports_to_listen_at(const std::string& ephemeral);

}  // namespace floe::launch
