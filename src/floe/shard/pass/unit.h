// A unit at run time: what happens around each of its calls.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "floe/nn/boundary.h"
#include "floe/shard/engine.h"

namespace floe::shard {

// The two autograd nodes of a unit's call.
//
// Note [Backward without parameter hooks]
// OutputNode sits on a call's outputs and fires before anything of the unit's backward: gather.
// InputNode sits on its inputs and fires when their gradients are complete: release. Both are
// identities. InputNode is made before the forward, so its sequence number is the lowest of the call:
// the engine runs ready nodes with higher numbers first, hence every other node of the call has run
// when it does. No parameter has to require a gradient for any of this.

// One call of a unit, from its forward to the end of its backward.
class UnitCall {
 public:
  virtual ~UnitCall() = default;
  virtual void before_backward() = 0;
  virtual void after_backward() = 0;
};

// Puts the node on those tensors that require a gradient; false when none does.
bool attach_input_node(nn::TensorRefs& inputs, std::shared_ptr<UnitCall> call);
bool attach_output_node(nn::TensorRefs& outputs, std::shared_ptr<UnitCall> call);

class Unit final : public nn::Boundary {
 public:
  Unit(std::size_t id, Engine& engine, const PlannedUnit& plan, std::vector<FlatGroup*> groups);
  ~Unit() override;

  std::size_t id() const { return id_; }
  const PlannedUnit& plan() const { return plan_; }
  const std::vector<FlatGroup*>& groups() const { return groups_; }
  const std::string& label() const { return label_; }

  void before_forward(nn::TensorRefs& inputs) override;
  void after_forward(nn::TensorRefs& outputs) override;

  // Makes these groups (by position) whole and holds them.
  void gather(std::uint64_t groups);
  void drop(std::uint64_t groups);
  // A trainable group of this unit has all its gradients: where nothing else is left to differentiate
  // (no input needs a gradient, no inner unit), the call's backward is over.
  void on_group_complete();
  // Closes calls whose backward is over or will never come.
  void close_calls();
  // Forgets all calls; what they held is the groups' to reset.
  void abandon_calls();
  // Whether some call's backward is still to come.
  bool waits() const;

 private:
  class Call;

  std::uint64_t all_groups() const;
  // Those that autograd has saved something of (see Note [Who needs the parameters in backward]).
  std::uint64_t saved_groups() const;
  void cast(nn::TensorRefs& inputs) const;

  std::size_t id_;
  Engine& engine_;
  const PlannedUnit& plan_;
  std::vector<FlatGroup*> groups_;
  std::string label_;
  bool has_inner_units_;
  std::vector<std::shared_ptr<Call>> running_;  // forwards under way, innermost last
  std::vector<std::weak_ptr<Call>> waiting_;    // for their backward
};

}  // namespace floe::shard
