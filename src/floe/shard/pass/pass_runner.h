// Passes through a model, as its units report them: gathers what a unit needs before it runs and
// what the next ones will need while it does, and reduces gradients as they arrive.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "floe/nn/autocast.h"
#include "floe/shard/group/context.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/group/pool.h"
#include "floe/shard/options.h"
#include "floe/shard/pass/schedule.h"
#include "floe/shard/plan/mask.h"
#include "floe/shard/plan/plan.h"

namespace floe::shard {

class Unit;
class OperatorWatch;

// Everything here is called on the thread that runs the model, or, in backward, on autograd's.
class PassRunner final : public BufferForecast, public GradientListener {
 public:
  // All of these must outlive it.
  PassRunner(const ShardPlan& plan, const ShardOptions& options, Context& context);
  // The model may outlive it: its modules and parameters are left without boundaries and hooks.
  ~PassRunner() override;
  PassRunner(const PassRunner&) = delete;
  PassRunner& operator=(const PassRunner&) = delete;

  // Makes the units of the plan, of its groups, and puts them around the model's modules.
  void connect(const std::vector<std::unique_ptr<FlatGroup>>& groups);
  // These groups train from now on.
  void follow(std::vector<FlatGroup*> active);
  // None does; nothing refers to groups and their storages but the units.
  void unfollow();

  // No forward or backward is under way, and none is still to come for a graph that is alive.
  bool idle() const;
  // The pass is over, as far as anybody can see.
  void end_pass();
  // Gives up everything that a broken pass left behind.
  void abandon();
  // Collective: goes through a forward without gradients beside ranks that have one.
  void empty_forward();

  Schedule& schedule() { return schedule_; }
  const Schedule& schedule() const { return schedule_; }
  // Whether the backward is the last one of its update.
  bool gradient_sync() const { return gradient_sync_; }
  void set_gradient_sync(bool on) { gradient_sync_ = on; }
  // Another set trains now: its owners hear of the next backward (SliceOwner::prefetch).
  void announce_backward() { owners_wait_ = true; }
  bool owners_wait() const { return owners_wait_; }

  // ---- what units report, on their way ----
  // Before a forward or backward; these of its groups are gathered when this returns.
  void enter_unit(Unit& unit, Step::Kind kind, GroupMask groups);
  // After a forward; the unit has dropped what it need not keep.
  void exit_unit(Unit& unit);
  // Something of a backward begins; the first call of one does something.
  void enter_backward();
  void before_gradient(FlatGroup& group) override;
  void on_gradient(FlatGroup& group, std::size_t index) override;

  // ---- what they ask ----
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const ShardPlan& plan() const { return plan_; }
  const MixedPrecision& mixed_precision() const { return options_.mixed_precision; }
  Context& context() { return context_; }
  // Whether nothing that is not gathered now comes between here and the unit's own backward.
  bool next_is_backward_of(const Unit& unit) const;
  // Whether a forward of another unit in this pass uses the group again.
  bool used_again(const FlatGroup& group) const;

  // ---- what pools ask ----
  bool parameter_buffer_ahead(std::int64_t bytes) const override;
  bool gradient_buffer_ahead(std::int64_t bytes) const override;

 private:
  // Whether some unit's backward is still to come.
  bool any_call_waits() const;
  // Whether one of the next steps of the pass uses a group that fits.
  template <class F>
  bool any_group_ahead(F&& fits) const;
  void prefetch();
  void reduce(FlatGroup& group);
  // Waits until the buffer of the reduction under way is free again; what is left of it, the sum
  // over copies, goes on beside backward.
  void free_reduced_buffer();
  // Whether the gradient is kept whole for the next pass.
  bool stays_whole(const FlatGroup& group) const;
  void finish_backward();

  const ShardPlan& plan_;
  const ShardOptions& options_;
  Context& context_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<FlatGroup*> groups_, active_;
  std::unique_ptr<OperatorWatch> watch_;
  Schedule schedule_;
  std::optional<nn::AutocastScope> autocast_;  // around the outermost forward
  int forward_depth_ = 0;
  int backward_task_ = -1;  // autograd's number of the backward under way
  bool gradient_sync_ = true;
  bool owners_wait_ = false;
  bool adds_up_whole_ = false;             // ShardPlan::accumulates, of what trains now
  GroupGradient* reducing_ = nullptr;      // its buffer is in use
  std::vector<GroupGradient*> averaging_;  // sums over copies under way, oldest first
  std::shared_ptr<PassRunner*> alive_;     // autograd callbacks may outlive the engine
};

}  // namespace floe::shard
