#include "floe/observe/diagnostics/memory_owners.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "floe/comm/world.h"
#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/core/table.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"

namespace floe::diagnostics {
namespace {

using optim::Ema;
using optim::Optimizer;
using shard::PlannedGroup;
using shard::Rest;

constexpr const char* kSaves = "saves";
constexpr const char* kRest = "rest";
constexpr std::int64_t kWorthSaying = kMiB;  // of growth of the rest

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

// Of a slice of the group with values of this dtype.
std::int64_t slice_bytes(const PlannedGroup& group, c10::ScalarType dtype) {
  return group.layout.slice_numel() * static_cast<std::int64_t>(c10::elementSize(dtype));
}

Owner owner_of_state(const shard::Engine& engine, const Optimizer& optimizer) {
  const std::string& set = engine.sets()[optimizer.set()].name;
  if (engine.sets().size() == 1) return {"optimizer_state", "the optimizer state"};
  return {"optimizer_state." + set, str("the optimizer state of set '", set, "'")};
}

// Which of the parameters' owners has the group now.
struct ParameterOwners {
  Owner trainable{"parameters.trainable", "the parameters that train"};
  Owner resting{"parameters.resting", "the parameters that rest"};
  Owner frozen{"parameters.frozen", "the frozen parameters"};

  Owner& of(const PlannedGroup& group) {
    return group.active ? trainable : group.trainable ? resting : frozen;
  }
};

// With cpu_offload the slices of an accelerator, and all that is sliced like them, are in host
// memory.
bool in_host_memory(const shard::Engine& engine, const PlannedGroup& group) {
  return group.offloaded && !engine.world().device().is_cpu();
}

void add(Owner& owner, std::int64_t bytes, bool host) {
  (host ? owner.host_bytes : owner.device_bytes) += bytes;
}

Owner expected_state(const shard::Engine& engine, const Optimizer& optimizer) {
  Owner owner = owner_of_state(engine, optimizer);
  const bool rests = engine.active_set() != optimizer.set();
  const Rest rest = engine.sets()[optimizer.set()].rest;
  if (rests && rest == Rest::drop) return owner;
  owner.host_bytes = optimizer.due_bytes();
  for (const PlannedGroup& group : engine.plan().groups) {
    if (!group.trains_in(optimizer.set())) continue;
    const bool stored = rests && rest == Rest::offload && !group.offloaded;
    add(owner, optimizer.values_per_element() * slice_bytes(group, group.master_dtype),
        stored || in_host_memory(engine, group));
  }
  return owner;
}

Owner expected_averages(const shard::Engine& engine, const Ema& ema) {
  Owner owner{"averages", "the averaged weights"};
  owner.host_bytes = ema.due_bytes();
  for (const PlannedGroup& group : engine.plan().groups) {
    if (!group.trainable) continue;
    const bool stored = !group.active && group.leaves_device();
    add(owner, slice_bytes(group, at::kFloat), stored || in_host_memory(engine, group));
  }
  return owner;
}

}  // namespace

const Owner* MemoryOwners::find(const std::string& key) const {
  const auto found =
      std::find_if(owners.begin(), owners.end(), [&](const Owner& o) { return o.key == key; });
  return found == owners.end() ? nullptr : &*found;
}

std::int64_t MemoryOwners::device_bytes() const {
  return std::accumulate(owners.begin(), owners.end(), std::int64_t{0},
                         [](std::int64_t sum, const Owner& o) { return sum + o.device_bytes; });
}

std::int64_t MemoryOwners::host_bytes() const {
  return std::accumulate(owners.begin(), owners.end(), std::int64_t{0},
                         [](std::int64_t sum, const Owner& o) { return sum + o.host_bytes; });
}

MemoryOwners memory_owners(const shard::Engine& engine, const std::vector<Optimizer*>& optimizers,
                           const Ema* ema, std::int64_t save_bytes) {
  ParameterOwners parameters;
  Owner gradients{"gradients", "the gradients"};
  bool offloaded = false;
  for (const auto& group : engine.groups()) {
    const bool host = in_host_memory(engine, group->plan());
    offloaded = offloaded || host;
    Owner& owner = parameters.of(group->plan());
    add(owner, bytes_of(group->slice()) + bytes_of(group->transposed()), host);
    owner.host_bytes += group->stored_bytes();
    add(gradients, bytes_of(group->gradient()), host);
  }
  MemoryOwners memory;
  memory.owners = {parameters.trainable, parameters.resting, parameters.frozen, gradients};
  for (const Optimizer* optimizer : optimizers) {
    Owner state = owner_of_state(engine, *optimizer);
    add(state, optimizer->state_bytes(), offloaded);
    state.host_bytes += optimizer->stored_bytes();
    memory.owners.push_back(std::move(state));
  }
  if (ema) {
    Owner averages{"averages", "the averaged weights"};
    add(averages, ema->state_bytes(), offloaded);
    averages.host_bytes += ema->stored_bytes();
    memory.owners.push_back(std::move(averages));
  }
  const shard::MemoryInUse pools = engine.memory();
  memory.owners.push_back({"gather_pool", "the pool of gathered parameters", pools.pool_held});
  memory.owners.push_back(
      {"gradient_pool", "the pool of gradients before reduction", pools.gradient_pool_held});
  Owner saves{kSaves, "the copies of saves"};
  add(saves, save_bytes, !engine.world().device().is_cpu());
  memory.owners.push_back(std::move(saves));
  const std::int64_t rest =
      device_memory(engine.world().device()).current_bytes - memory.device_bytes();
  if (rest >= 0) memory.owners.push_back({kRest, "the rest", rest});
  return memory;
}

MemoryOwners expected_owners(const MemoryOwners& before, const shard::Engine& engine,
                             const std::vector<Optimizer*>& optimizers, const Ema* ema) {
  ParameterOwners parameters;
  for (const PlannedGroup& group : engine.plan().groups) {
    Owner& owner = parameters.of(group);
    add(owner, group.slice_bytes(), in_host_memory(engine, group));
    // Dropped masters too: what has never trained still has those of the files.
    if (group.masters_away()) owner.host_bytes += slice_bytes(group, group.master_dtype);
  }
  MemoryOwners expected;
  expected.owners = {parameters.trainable, parameters.resting, parameters.frozen,
                     Owner{"gradients", "the gradients"}};
  for (const Optimizer* optimizer : optimizers)
    expected.owners.push_back(expected_state(engine, *optimizer));
  if (ema) expected.owners.push_back(expected_averages(engine, *ema));
  // Between steps the pools are empty.
  expected.owners.push_back({"gather_pool", "the pool of gathered parameters"});
  expected.owners.push_back({"gradient_pool", "the pool of gradients before reduction"});
  for (const char* key : {kSaves, kRest})
    if (const Owner* owner = before.find(key)) expected.owners.push_back(*owner);
  return expected;
}

std::vector<std::string> surplus(const MemoryOwners& now, const MemoryOwners& expected) {
  std::vector<std::string> sentences;
  const std::int64_t tolerated = std::max(kWorthSaying, expected.device_bytes() / 100);
  for (const Owner& owner : now.owners) {
    const Owner* planned = expected.find(owner.key);
    if (!planned) continue;
    const auto compare = [&](std::int64_t holds, std::int64_t most, const char* where) {
      const bool is_rest = owner.key == kRest;
      if (holds <= most + (is_rest ? tolerated : 0)) return;
      sentences.push_back(str(owner.name,
                              is_rest ? " (activations, batches, tensors that somebody keeps)" : "",
                              owner.name.ends_with("s") ? " hold " : " holds ", format_bytes(holds),
                              where, ", expected ", format_bytes(most)));
    };
    compare(owner.device_bytes, planned->device_bytes, " on the device");
    compare(owner.host_bytes, planned->host_bytes, " in host memory");
  }
  return sentences;
}

std::vector<std::string> switch_lines(const MemoryOwners& before, const MemoryOwners& after) {
  using enum Align;
  Table table({left, right, right}, 2);
  table.row({"owner", "before", "after"});
  const auto row = [&](const std::string& name, std::int64_t then, std::int64_t now) {
    if (then != 0 || now != 0) table.row({name, format_bytes(then), format_bytes(now)});
  };
  const auto each = [&](std::int64_t Owner::*bytes, const std::string& where) {
    for (const Owner& owner : after.owners) {
      const Owner* then = before.find(owner.key);
      row(owner.name + where, then ? then->*bytes : 0, owner.*bytes);
    }
  };
  each(&Owner::device_bytes, "");
  row("together on the device", before.device_bytes(), after.device_bytes());
  each(&Owner::host_bytes, ", in host memory");
  return table.lines();
}

nlohmann::ordered_json owners_json(const MemoryOwners& memory) {
  auto json = nlohmann::ordered_json::object();
  for (const Owner& owner : memory.owners)
    if (owner.device_bytes != 0) json[owner.key] = owner.device_bytes;
  for (const Owner& owner : memory.owners)
    if (owner.host_bytes != 0) json["host." + owner.key] = owner.host_bytes;
  return json;
}

}  // namespace floe::diagnostics
