// The engine's part about sets: which groups train, and how that changes.
#include <algorithm>
#include <utility>

#include "floe/core/error.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/regroup.h"
#include "floe/shard/pass/agreement.h"
#include "floe/shard/pass/pass_runner.h"

namespace floe::shard {

void Engine::follow_active() {
  layout_number_ += 1;
  trainable_.clear();
  active_.clear();
  for (auto& group : groups_) {
    if (group->plan().trainable) trainable_.push_back(group.get());
    if (group->plan().active) active_.push_back(group.get());
  }
  runner_->follow(active_);
  for (const PlannedCheckpoint& checkpoint : plan_.checkpointed) {
    const auto parameters = checkpoint.module->parameters();
    checkpoint.slot->trains = std::any_of(parameters.begin(), parameters.end(),
                                          [](const at::Tensor& p) { return p.requires_grad(); });
  }
  context_.pool.set_capacity(plan_.pool_bytes());
  context_.gradient_pool.set_capacity(plan_.held().gradient_buffers);
}

void Engine::require_idle(const char* what) const {
  require<ShardError>(runner_->idle(), what,
                      " is called while a forward or backward is under way; call it between steps, "
                      "when the loss and everything else of the last graph is gone");
}

void Engine::activate(std::size_t set) {
  require<ShardError>(set < plan_.sets.size(), "there is no set ", set, "; there are ",
                      plan_.sets.size());
  require_idle("Engine::activate");
  const std::size_t before = plan_.active_set;
  if (set == before) return;
  runner_->end_pass();
  for (SliceOwner* owner : context_.owners)
    owner->deactivate(before, set);  // one that refuses does so before the engine has changed
  runner_->unfollow();
  clear_gradients();
  context_.collectives.add("activate", set, plan_.sets[set].name, 0);

  Schedule& schedule = runner_->schedule();
  inactive_schedules_[before] = schedule;  // of a set that is new, the best guess is the one before
  if (const auto known = inactive_schedules_.find(set); known != inactive_schedules_.end())
    schedule = std::move(known->second);

  const std::vector<FlatGroup*> leaving = active_;
  plan_.activate(set);
  for (FlatGroup* group : leaving)
    if (!group->plan().active) group->deactivate();
  for (auto& group : groups_)
    if (group->plan().active && !group->plan().trains_in(before)) group->activate();
  follow_active();
  for (SliceOwner* owner : context_.owners) owner->activate(set);
  runner_->announce_backward();
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
  runner_->end_pass();
  runner_->unfollow();
  clear_gradients();
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
  runner_->connect(groups_);
  follow_active();
  inactive_schedules_.clear();
  runner_->schedule() = {};
  const Relayout relayout = regrouped.relayout(was_trainable, trainable_);
  for (SliceOwner* owner : context_.owners) owner->relayout(relayout);
  for (auto& group : groups_) group->count_references();
  // Before anybody saves what was gathered: it has arrived, or this throws.
  world().read(at::zeros({1}, at::device(context_.device)));
}

}  // namespace floe::shard
