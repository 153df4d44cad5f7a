// Groups of a new plan, made of those of the plan before: for Engine::set_trainable.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "floe/io/tensors/tensor_source.h"
#include "floe/shard/group/context.h"
#include "floe/shard/group/flat_group.h"

namespace floe::shard {

// How the groups of a new plan come from those of the plan before: each is one of them, or a part
// of one, because a set more only divides what is there.
class Relayout {
 public:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  // Where a trainable group comes from.
  struct Part {
    std::size_t from = kNone;     // the trainable group before; none: it was frozen
    FlatGroup* before = nullptr;  // null: it is the same group as before
    const FlatGroup* after = nullptr;
  };
  // By position among the trainable groups after.
  explicit Relayout(std::vector<Part> parts) : parts_(std::move(parts)) {}

  const std::vector<Part>& parts() const { return parts_; }

  // Slices of the trainable groups before, as slices of those after; what has none stays
  // undefined. Parts come out on the device. Collective; which slices are defined must be the same
  // on all ranks.
  std::vector<at::Tensor> apply(const std::vector<at::Tensor>& slices) const;

 private:
  std::vector<Part> parts_;
};

// This rank's slice of `to`, cut out of a whole buffer of `from`, which has all parameters of `to`.
at::Tensor cut_slice(const at::Tensor& whole, const FlatGroup& from, const FlatGroup& to);

struct Regrouped {
  std::vector<std::unique_ptr<FlatGroup>> groups;   // in the order of the new plan
  std::vector<std::unique_ptr<FlatGroup>> divided;  // groups before that are gone, without values
  std::vector<FlatGroup*> origin;                   // of each new group; itself when it stayed

  // For what is sliced like trainable groups.
  Relayout relayout(const std::vector<FlatGroup*>& trainable_before,
                    const std::vector<FlatGroup*>& trainable_after) const;
};

// Throws ConfigError where masters would start from 8 bits: what the new plan trains and the groups
// store so must be read again, and be in the source (`reread`; null: nothing is).
void check_masters(const std::vector<std::unique_ptr<FlatGroup>>& before, const ShardPlan& plan,
                   const TensorSource* reread);

// Collective. Groups that the new plan has as they are stay; of each other one the values
// are gathered, one group at a time, and cut anew. `reread`: where to read what was frozen
// again; null: nothing.
Regrouped regroup(std::vector<std::unique_ptr<FlatGroup>> before, const ShardPlan& plan,
                  Context& context, const TensorSource* reread);

}  // namespace floe::shard
