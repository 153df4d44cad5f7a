// The memory of a rank by owner: whose bytes lie on its device, and in host memory, between two
// steps.
//
//   const MemoryOwners before = memory_owners(engine, optimizers, ema);
//   engine.activate(set);
//   const MemoryOwners after = memory_owners(engine, optimizers, ema);
//   const MemoryOwners expected = expected_owners(before, engine, optimizers, ema);
//   for (const std::string& sentence : surplus(after, expected)) log::warn(sentence);
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "floe/optim/ema.h"
#include "floe/optim/optimizer.h"
#include "floe/shard/engine.h"

namespace floe::diagnostics {

struct Owner {
  std::string key;   // for programs: "optimizer_state.a"
  std::string name;  // for people: "the optimizer state of set 'a'"
  std::int64_t device_bytes = 0;
  std::int64_t host_bytes = 0;  // of masters that rest: in the store; with cpu_offload: all slices
};

struct MemoryOwners {
  // In a fixed order. The last one is "the rest": what the device's allocator has in use beyond all
  // others (activations, batches, tensors that somebody keeps). It is missing where the allocator
  // does not know the others, because counting began after they were made (see device_memory).
  std::vector<Owner> owners;

  const Owner* find(const std::string& key) const;
  std::int64_t device_bytes() const;
  std::int64_t host_bytes() const;
};

// `optimizers`: one per set, in any order. `ema` may be null. `save_bytes`: of the host memory that
// saves copy to, which lies on the device where that is the CPU.
MemoryOwners memory_owners(const shard::Engine& engine,
                           const std::vector<optim::Optimizer*>& optimizers, const optim::Ema* ema,
                           std::int64_t save_bytes = 0);

// After a switch: the most that each owner should hold, by the plan of the engine as it is now. The
// memory of saves and the rest should be what they were before.
MemoryOwners expected_owners(const MemoryOwners& before, const shard::Engine& engine,
                             const std::vector<optim::Optimizer*>& optimizers,
                             const optim::Ema* ema);

// A sentence for each owner that holds more than expected; for the rest, when it has grown by more
// than a hundredth of everything (and by 1 MiB).
std::vector<std::string> surplus(const MemoryOwners& now, const MemoryOwners& expected);

// A table for people: the owners that hold something before or after.
std::vector<std::string> switch_lines(const MemoryOwners& before, const MemoryOwners& after);
// {"optimizer_state.a": bytes on the device, "host.optimizer_state.b": bytes in host memory, ...}:
// what is not zero.
nlohmann::ordered_json owners_json(const MemoryOwners& memory);

}  // namespace floe::diagnostics
