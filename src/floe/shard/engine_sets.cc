// The engine's part about sets: which groups train, and how that changes.
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "floe/core/error.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/regroup.h"
#include "floe/shard/pass/agreement.h"
#include "floe/shard/pass/operator_watch.h"
#include "floe/shard/pass/unit.h"

namespace floe::shard {
namespace {

// Told by autograd that a parameter's gradient is complete.
class GradientHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit GradientHook(std::function<void()> arrived) : arrived_(std::move(arrived)) {}
  void operator()(const torch::autograd::Variable&) override { arrived_(); }

 private:
  std::function<void()> arrived_;
};

}  // namespace

void Engine::remove_hooks() {
  for (FlatGroup* group : active_)
    for (std::size_t i = 0; i < group->plan().parameters.size(); ++i)
      torch::autograd::impl::set_post_acc_grad_hooks(group->leaf(i), nullptr);
}

void Engine::follow_active() {
  layout_number_ += 1;
  trainable_.clear();
  active_.clear();
  for (auto& group : groups_) {
    if (group->plan().trainable) trainable_.push_back(group.get());
    if (group->plan().active) active_.push_back(group.get());
  }
  for (FlatGroup* group : active_)
    for (std::size_t i = 0; i < group->plan().parameters.size(); ++i)
      torch::autograd::impl::set_post_acc_grad_hooks(
          group->leaf(i),
          std::make_unique<GradientHook>([this, group, i] { on_gradient(*group, i); }));
  for (const PlannedCheckpoint& checkpoint : plan_.checkpointed) {
    const auto parameters = checkpoint.module->parameters();
    checkpoint.slot->trains = std::any_of(parameters.begin(), parameters.end(),
                                          [](const at::Tensor& p) { return p.requires_grad(); });
  }
  // It knows parameters by their storage, which may be another one now.
  if (options_.watch_operators) watch_ = std::make_unique<OperatorWatch>(*this);
  context_.pool.set_capacity(plan_.pool_bytes());
  context_.gradient_pool.set_capacity(plan_.held().gradient_buffers);
}

void Engine::require_idle(const char* what) const {
  require<ShardError>(forward_depth_ == 0 && backward_task_ == -1 && !any_call_waits(), what,
                      " is called while a forward or backward is under way; call it between steps, "
                      "when the loss and everything else of the last graph is gone");
}

void Engine::activate(std::size_t set) {
  require<ShardError>(set < plan_.sets.size(), "there is no set ", set, "; there are ",
                      plan_.sets.size());
  require_idle("Engine::activate");
  const std::size_t before = plan_.active_set;
  if (set == before) return;
  end_pass();
  for (SliceOwner* owner : owners_)
    owner->rest(before, set);  // one that refuses does so before the engine has changed
  watch_.reset();              // it knows storages that may go now
  clear_gradients();
  remove_hooks();
  context_.ledger.add("activate", set, plan_.sets[set].name, 0);

  resting_schedules_[before] = schedule_;  // of a set that is new, the best guess is the one before
  if (const auto known = resting_schedules_.find(set); known != resting_schedules_.end())
    schedule_ = std::move(known->second);

  const std::vector<FlatGroup*> leaving = active_;
  plan_.activate(set);
  for (FlatGroup* group : leaving)
    if (!group->plan().active) group->rest();
  for (auto& group : groups_)
    if (group->plan().active && !group->plan().trains_in(before)) group->wake();
  follow_active();
  for (SliceOwner* owner : owners_) owner->wake(set);
  arrivals_due_ = true;
}

std::size_t Engine::set_trainable(const std::vector<std::string>& patterns, SetOptions options) {
  require_idle("Engine::set_trainable");
  require<ConfigError>(!patterns.empty(), "Engine::set_trainable needs patterns, got none");
  require<ConfigError>(
      !options.reread || options_.source,
      "Engine::set_trainable is to read masters again, but ShardOptions::source is "
      "missing; give one, or leave `reread` out");
  ShardOptions wanted = options_;
  wanted.sets.push_back({join(patterns, "|"), patterns, options.rest});
  ShardPlan plan = make_plan(*model_, policy_, wanted, plan_.world_size, &plan_);
  const std::size_t added = plan.sets.size() - 1;
  // Before anything depends on the answer: ranks with other patterns must not go other ways.
  ShardOptions compared = wanted;
  if (!options.reread) compared.source = nullptr;  // it may be gone by now
  compare_plans(agreed_lines(plan, compared), *context_.world);
  const auto trains_the_same = [&](std::size_t set) {
    return std::all_of(
        plan.parameters.begin(), plan.parameters.end(),
        [&](const PlannedParameter& p) { return p.trains_in(set) == p.trains_in(added); });
  };
  for (std::size_t set = 0; set < added; ++set)
    if (trains_the_same(set)) {
      activate(set);
      return set;
    }
  check_masters(groups_, plan, options.reread ? options_.source : nullptr);
  end_pass();
  watch_.reset();
  clear_gradients();
  remove_hooks();
  options_ = std::move(wanted);
  lay_out_anew(std::move(plan), options.reread);
  activate(added);
  return added;
}

void Engine::lay_out_anew(ShardPlan plan, bool reread) {
  // As it is now: the new set comes in afterwards, like any other.
  plan.activate(plan_.active_set);
  retired_plans_.push_back(std::exchange(plan_, std::move(plan)));
  const std::vector<FlatGroup*> was_trainable = trainable_;
  Regrouped regrouped =
      regroup(std::move(groups_), plan_, context_, reread ? options_.source : nullptr);
  groups_ = std::move(regrouped.groups);
  for (auto& parameter : retired_plans_.back().parameters) parameter.tensor.reset();
  connect_units();
  follow_active();
  resting_schedules_.clear();
  schedule_ = {};
  const Relayout relayout = regrouped.relayout(was_trainable, trainable_);
  for (SliceOwner* owner : owners_) owner->relaid(relayout);
  for (auto& group : groups_) group->count_references();
  // Before anybody saves what was gathered: it has arrived, or this throws.
  world().read(at::zeros({1}, at::device(context_.device)));
}

}  // namespace floe::shard
