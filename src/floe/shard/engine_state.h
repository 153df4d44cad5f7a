// What an engine consists of. Only its own sources include this.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "floe/shard/engine.h"
#include "floe/shard/group/context.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/pass/pass_runner.h"
#include "floe/shard/pass/schedule.h"
#include "floe/shard/plan/plan.h"

namespace floe::shard {

struct Engine::State {
  // Makes the plan; nothing of the model changes.
  State(std::shared_ptr<torch::nn::Module> sharded, const Policy& units, ShardOptions chosen);

  std::shared_ptr<torch::nn::Module> model;
  Policy policy;
  ShardOptions options;
  ShardPlan plan;
  std::vector<ShardPlan> retired_plans;  // the hash of collectives refers to names in them
  Context context;
  std::vector<std::unique_ptr<FlatGroup>> groups;
  std::vector<FlatGroup*> trainable, active;
  std::unique_ptr<PassRunner> runner;
  std::map<std::size_t, Schedule> inactive_schedules;  // by set: each has its own backward
  std::uint64_t layout_number = 0;
};

}  // namespace floe::shard
