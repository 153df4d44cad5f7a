// The engine's part about sets: which groups train, and how that changes.
#include <algorithm>
#include <utility>

#include "floe/core/error.h"
#include "floe/shard/engine_state.h"
#include "floe/shard/group/regroup.h"
#include "floe/shard/pass/agreement.h"

namespace floe::shard {

void Engine::follow_active() {
  state_->layout_number += 1;
  state_->trainable.clear();
  state_->active.clear();
  for (auto& group : state_->groups) {
    if (group->plan().trainable) state_->trainable.push_back(group.get());
    if (group->plan().active) state_->active.push_back(group.get());
  }
  state_->runner->follow(state_->active);
  for (const PlannedCheckpoint& checkpoint : state_->plan.checkpointed) {
    const auto parameters = checkpoint.module->parameters();
    checkpoint.slot->trains = std::any_of(parameters.begin(), parameters.end(),
                                          [](const at::Tensor& p) { return p.requires_grad(); });
  }
  state_->context.pool.set_capacity(state_->plan.pool_bytes());
  state_->context.gradient_pool.set_capacity(state_->plan.held().gradient_buffers);
}

void Engine::require_idle(const char* what) const {
  require<ShardError>(state_->runner->idle(), what,
                      " is called while a forward or backward is under way; call it between steps, "
                      "when the loss and everything else of the last graph is gone");
}

void Engine::activate(std::size_t set) {
  require<ShardError>(set < state_->plan.sets.size(), "there is no set ", set, "; there are ",
                      state_->plan.sets.size());
  require_idle("Engine::activate");
  const std::size_t before = state_->plan.active_set;
  if (set == before) return;
  state_->runner->end_pass();
  for (SliceOwner* owner : state_->context.owners)
    owner->deactivate(before, set);  // one that refuses does so before the engine has changed
  state_->runner->unfollow();
  clear_gradients();
  state_->context.collectives.add("activate", set, state_->plan.sets[set].name, 0);

  Schedule& schedule = state_->runner->schedule();
  state_->inactive_schedules[before] =
      schedule;  // of a set that is new, the best guess is the one before
  if (const auto known = state_->inactive_schedules.find(set);
      known != state_->inactive_schedules.end())
    schedule = std::move(known->second);

  const std::vector<FlatGroup*> leaving = state_->active;
  state_->plan.activate(set);
  for (FlatGroup* group : leaving)
    if (!group->plan().active) group->deactivate();
  for (auto& group : state_->groups)
    if (group->plan().active && !group->plan().trains_in(before)) group->activate();
  follow_active();
  for (SliceOwner* owner : state_->context.owners) owner->activate(set);
  state_->runner->announce_backward();
}

std::size_t Engine::set_trainable(const std::vector<std::string>& patterns, SetOptions options) {
  require_idle("Engine::set_trainable");
  require<ConfigError>(!patterns.empty(), "Engine::set_trainable needs patterns, got none");
  require<ConfigError>(
      !options.reread || state_->options.source,
      "Engine::set_trainable is to read masters again, but ShardOptions::source is "
      "missing; give one, or leave `reread` out");
  ShardOptions wanted = state_->options;
  wanted.sets.push_back({join(patterns, "|"), patterns, options.rest});
  ShardPlan plan =
      make_plan(*state_->model, state_->policy, wanted, state_->plan.world_size, &state_->plan);
  const std::size_t added = plan.sets.size() - 1;
  // Before anything depends on the answer: ranks with other patterns must not go other ways.
  ShardOptions compared = wanted;
  if (!options.reread) compared.source = nullptr;  // it may be gone by now
  compare_plans(agreed_lines(plan, compared), *state_->context.world);
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
  check_masters(state_->groups, plan, options.reread ? state_->options.source : nullptr);
  state_->runner->end_pass();
  state_->runner->unfollow();
  clear_gradients();
  state_->options = std::move(wanted);
  lay_out_anew(std::move(plan), options.reread);
  activate(added);
  return added;
}

void Engine::lay_out_anew(ShardPlan plan, bool reread) {
  // As it is now: the new set comes in afterwards, like any other.
  plan.activate(state_->plan.active_set);
  state_->retired_plans.push_back(std::exchange(state_->plan, std::move(plan)));
  const std::vector<FlatGroup*> was_trainable = state_->trainable;
  Regrouped regrouped = regroup(std::move(state_->groups), state_->plan, state_->context,
                                reread ? state_->options.source : nullptr);
  state_->groups = std::move(regrouped.groups);
  for (auto& parameter : state_->retired_plans.back().parameters) parameter.tensor.reset();
  state_->runner->connect(state_->groups);
  follow_active();
  state_->inactive_schedules.clear();
  state_->runner->schedule() = {};
  const Relayout relayout = regrouped.relayout(was_trainable, state_->trainable);
  for (SliceOwner* owner : state_->context.owners) owner->relayout(relayout);
  for (auto& group : state_->groups) group->count_references();
  // Before anybody saves what was gathered: it has arrived, or this throws.
  world().read(at::zeros({1}, at::device(state_->context.device)));
}

}  // namespace floe::shard
