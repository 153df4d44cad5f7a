// A unit at run time: what happens around each of its calls.
//
// Note [Backward without parameter hooks]
// A call of a unit has two autograd nodes, both identities. The output node sits on the call's
// outputs and fires before anything of the unit's backward: gather. The input node sits on its
// inputs and fires when their gradients are complete: release. The input node is made before the
// forward, so its sequence number is the lowest of the call: the engine runs ready nodes with
// higher numbers first, hence every other node of the call has run when it does. No parameter has
// to require a gradient for any of this.
#pragma once

#include <memory>
#include <vector>

#include "floe/nn/boundary.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/mask.h"
#include "floe/shard/plan/plan.h"

namespace floe::shard {

class PassRunner;

class Unit final : public nn::Boundary {
 public:
  Unit(std::size_t id, PassRunner& runner, const PlannedUnit& plan, std::vector<FlatGroup*> groups);
  ~Unit() override;

  std::size_t id() const { return id_; }
  const PlannedUnit& plan() const { return plan_; }
  const std::vector<FlatGroup*>& groups() const { return groups_; }
  GroupMask all_groups() const { return GroupMask::all(groups_.size()); }
  const std::string& label() const { return label_; }

  void before_forward(nn::TensorRefs& inputs) override;
  void after_forward(nn::TensorRefs& outputs) override;

  // Gathers these groups and holds them.
  void gather(GroupMask groups);
  void drop(GroupMask groups);
  // A trainable group of this unit has all its gradients: where nothing else is left to
  // differentiate (no input needs a gradient, no inner unit), the call's backward is over.
  void on_group_complete();
  // Closes calls whose backward is over or will never come.
  void close_calls();
  // Forgets all calls; what they held is the groups' to reset.
  void abandon_calls();
  // Whether some call's backward is still to come.
  bool waits() const;

 private:
  class Call;

  // Those that autograd has saved something of (see Note [Who needs the parameters in backward]).
  GroupMask saved_groups() const;
  void cast(nn::TensorRefs& inputs) const;

  std::size_t id_;
  PassRunner& runner_;
  const PlannedUnit& plan_;
  std::vector<FlatGroup*> groups_;
  std::string label_;
  bool has_inner_units_;
  std::vector<std::shared_ptr<Call>> running_;  // forwards under way, innermost last
  std::vector<std::weak_ptr<Call>> waiting_;    // for their backward
};

}  // namespace floe::shard
