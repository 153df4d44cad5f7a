// Groups of a new plan, made of those of the plan before: for Engine::set_trainable.
#pragma once

#include <memory>
#include <vector>

#include "floe/io/tensor_source.h"
#include "floe/shard/context.h"
#include "floe/shard/flat_group.h"
#include "floe/shard/relayout.h"

namespace floe::shard {

struct Regrouped {
  std::vector<std::unique_ptr<FlatGroup>> groups;   // in the order of the new plan
  std::vector<std::unique_ptr<FlatGroup>> divided;  // groups before that are gone, without values
  std::vector<FlatGroup*> origin;                   // of each new group; itself when it stayed

  // For what is sliced like trainable groups.
  Relayout relayout(const std::vector<FlatGroup*>& trainable_before,
                    const std::vector<FlatGroup*>& trainable_after) const;
};

// Throws ConfigError where masters would start from 8 bits: what the new plan trains and the groups store so
// must be read again, and be in the source (`reread`; null: nothing is).
void check_masters(const std::vector<std::unique_ptr<FlatGroup>>& before, const ShardPlan& plan,
                   const TensorSource* reread);

// Collective. Groups that the new plan has as they are stay; of each other one the values are gathered,
// one group at a time, and cut anew. `reread`: where to read what was frozen again; null: nothing.
Regrouped regroup(std::vector<std::unique_ptr<FlatGroup>> before, const ShardPlan& plan,
                  Context& context, const TensorSource* reread);

}  // namespace floe::shard
