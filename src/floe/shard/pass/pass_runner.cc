#include "floe/shard/pass/pass_runner.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "floe/kernels/rehearsal.h"
#include "floe/nn/activations/checkpoint.h"
#include "floe/shard/pass/operator_watch.h"
#include "floe/shard/pass/unit.h"

namespace floe::shard {

PassRunner::PassRunner(const ShardPlan& plan, const ShardOptions& options, Context& context)
    : plan_(plan),
      options_(options),
      context_(context),
      alive_(std::make_shared<PassRunner*>(this)) {
  context_.forecast = this;
  nn::add_recompute_listener(this, [this] {
    if (schedule_.open()) enter_backward();
  });
}

PassRunner::~PassRunner() {
  *alive_ = nullptr;
  nn::remove_recompute_listener(this);
  for (auto& unit : units_)
    if (unit->plan().slot && unit->plan().slot->boundary == unit.get())
      unit->plan().slot->boundary = nullptr;
  unfollow();
}

void PassRunner::connect(const std::vector<std::unique_ptr<FlatGroup>>& groups) {
  watch_.reset();
  units_.clear();
  groups_.clear();
  for (const auto& group : groups) groups_.push_back(group.get());
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    std::vector<FlatGroup*> used;
    for (const std::size_t g : plan_.units[u].groups) used.push_back(groups_[g]);
    units_.push_back(std::make_unique<Unit>(u, *this, plan_.units[u], std::move(used)));
    if (nn::BoundarySlot* slot = plan_.units[u].slot) slot->boundary = units_.back().get();
  }
}

void PassRunner::follow(std::vector<FlatGroup*> active) {
  active_ = std::move(active);
  for (FlatGroup* group : active_) group->gradients().set_listener(this);
  adds_up_whole_ = plan_.accumulates() == Accumulate::local;
  // It knows parameters by their storage, which may be another one now.
  if (options_.watch_operators) watch_ = std::make_unique<OperatorWatch>(units_);
}

void PassRunner::unfollow() {
  watch_.reset();
  for (FlatGroup* group : active_) group->gradients().set_listener(nullptr);
  active_.clear();
}

bool PassRunner::idle() const {
  return forward_depth_ == 0 && backward_task_ == -1 && !any_call_waits();
}

bool PassRunner::any_call_waits() const {
  return std::any_of(units_.begin(), units_.end(), [](const auto& unit) { return unit->waits(); });
}

// ---- around a unit's calls ----

void PassRunner::enter_unit(Unit& unit, Step::Kind kind, GroupMask groups) {
  const auto pass = at::GradMode::is_enabled() || kind == Step::Kind::backward
                        ? Schedule::PassKind::train
                        : Schedule::PassKind::evaluate;
  // A pass whose end nobody could see (no backward came, the root has no boundary) ends when one of
  // another kind begins, or the same one anew.
  if (schedule_.open() && forward_depth_ == 0 && context_.phase == PassPhase::forward &&
      (pass != schedule_.kind() || schedule_.begins_with(unit.id())) && !any_call_waits())
    end_pass();
  if (!schedule_.open()) schedule_.begin(pass);
  if (kind == Step::Kind::forward) {
    if (forward_depth_ == 0 && context_.phase != PassPhase::backward && options_.autocast &&
        !autocast_)
      autocast_.emplace(context_.device.type(), *options_.autocast);
    forward_depth_ += 1;
    if (context_.phase != PassPhase::backward) context_.phase = PassPhase::forward;
  }
  schedule_.record({unit.id(), kind, groups});
  context_.emit(
      kind == Step::Kind::forward ? Event::Kind::begin_forward : Event::Kind::begin_backward,
      unit.label(), "", 0);
  unit.gather(groups);
  prefetch();
}

void PassRunner::exit_unit(Unit& unit) {
  context_.emit(Event::Kind::end_forward, unit.label(), "", 0);
  schedule_.record({unit.id(), Step::Kind::leave, {}});
  forward_depth_ -= 1;
  if (forward_depth_ > 0 || context_.phase == PassPhase::backward) return;
  autocast_.reset();
  // A pass ends with its backward. Where none will come (no gradients, or nothing that has
  // one), it ends with the root's forward; a root without a boundary is never seen to end, so
  // there it goes on.
  if (unit.id() + 1 == units_.size() && !any_call_waits()) end_pass();
}

void PassRunner::end_pass() {
  if (schedule_.open()) schedule_.end();
  context_.phase = PassPhase::idle;
  if (watch_) watch_->release_all();
  for (FlatGroup* group : groups_) group->drop_unused();
  context_.pool.trim();
  context_.gradient_pool.trim();
}

void PassRunner::abandon() {
  forward_depth_ = 0;
  backward_task_ = -1;
  for (auto& unit : units_) unit->abandon_calls();
  for (FlatGroup* group : groups_) group->reset();
  reducing_ = nullptr;
  averaging_.clear();
  autocast_.reset();
  schedule_.cancel();
  end_pass();
}

void PassRunner::empty_forward() {
  const at::AutoGradMode grad_off(false);
  const std::vector<Step> steps = forward_steps(schedule_, plan_);
  for (const Step& step : steps) {
    Unit& unit = *units_[step.unit];
    if (step.kind == Step::Kind::forward) {
      enter_unit(unit, Step::Kind::forward, step.groups);
    } else {
      for (FlatGroup* group : unit.groups()) group->drop(unit.label(), used_again(*group));
      exit_unit(unit);
    }
  }
}

// ---- looking ahead ----

void PassRunner::prefetch() {
  int depth = 0;
  for (const Step* step = schedule_.ahead_begin(); step != schedule_.ahead_end(); ++step) {
    if (depth >= options_.prefetch) return;
    if (step->kind == Step::Kind::leave) continue;
    const Unit& unit = *units_[step->unit];
    bool in_use = true;
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < unit.groups().size(); ++i) {
      const FlatGroup& group = *unit.groups()[i];
      if (!step->groups.has(i) || group.plan().in_place()) continue;
      in_use = in_use && group.held();
      if (group.state() == GroupState::sliced)
        bytes += group.plan().gathered_bytes() + group.plan().staging_bytes();
    }
    if (in_use) continue;
    if (bytes > 0 && !context_.pool.has_room(bytes)) return;
    for (std::size_t i = 0; i < unit.groups().size(); ++i)
      if (step->groups.has(i)) unit.groups()[i]->begin_gather(unit.label(), /*ahead=*/true);
    depth += 1;
  }
}

bool PassRunner::next_is_backward_of(const Unit& unit) const {
  for (const Step* step = schedule_.ahead_begin(); step != schedule_.ahead_end(); ++step) {
    if (step->kind == Step::Kind::leave) continue;
    if (step->unit == unit.id()) return step->kind == Step::Kind::backward;
    const auto& groups = units_[step->unit]->groups();
    for (std::size_t i = 0; i < groups.size(); ++i)
      if (step->groups.has(i) && !groups[i]->plan().in_place() && !groups[i]->held()) return false;
  }
  return false;
}

bool PassRunner::used_again(const FlatGroup& group) const {
  const auto& users = group.plan().units;
  if (users.size() < 2) return false;
  for (const Step* step = schedule_.ahead_begin(); step != schedule_.ahead_end(); ++step)
    if (step->kind == Step::Kind::forward &&
        std::find(users.begin(), users.end(), step->unit) != users.end())
      return true;
  return false;
}

template <class F>
bool PassRunner::any_group_ahead(F&& fits) const {
  int entered = 0;
  for (const Step* step = schedule_.ahead_begin(); step != schedule_.ahead_end(); ++step) {
    if (step->kind == Step::Kind::leave) continue;
    if (entered++ > options_.prefetch + 1)
      return false;  // far ahead: an idle buffer is not worth it
    for (const FlatGroup* group : units_[step->unit]->groups())
      if (fits(*step, *group)) return true;
  }
  return false;
}

bool PassRunner::parameter_buffer_ahead(std::int64_t bytes) const {
  return any_group_ahead([bytes](const Step&, const FlatGroup& group) {
    return group.state() == GroupState::sliced &&
           (group.plan().gathered_bytes() == bytes || group.plan().staging_bytes() == bytes);
  });
}

bool PassRunner::gradient_buffer_ahead(std::int64_t bytes) const {
  return any_group_ahead([bytes](const Step& step, const FlatGroup& group) {
    return step.kind == Step::Kind::backward && !group.gradients().complete() &&
           group.plan().gradient_bytes() == bytes;
  });
}

// ---- backward ----

void PassRunner::enter_backward() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (nn::recomputing() || task == backward_task_) return;
  backward_task_ = task;
  context_.phase = PassPhase::backward;
  if (std::exchange(owners_wait_, false))
    for (SliceOwner* owner : context_.owners) owner->prefetch();
  for (FlatGroup* group : active_) group->gradients().begin_backward();
  torch::autograd::Engine::get_default_engine().queue_callback([alive = alive_] {
    if (*alive) (*alive)->finish_backward();
  });
}

void PassRunner::before_gradient(FlatGroup& group) {
  enter_backward();
  // A reduction that is over gives its buffer back before the next one is opened. On the CPU,
  // where a reduction needs the same cores as backward, nothing is gained by opening a second
  // one beside it.
  const bool opens = !group.gradients().has_unreduced();
  if (reducing_ &&
      (reducing_->buffer_is_free() || (opens && kernels::acts_as_cpu(context_.device))))
    free_reduced_buffer();
}

void PassRunner::on_gradient(FlatGroup& group, std::size_t index) {
  before_gradient(group);
  if (!group.gradients().accumulate(index)) return;
  if (gradient_sync_ || !stays_whole(group)) reduce(group);
  for (const std::size_t unit : group.plan().units) units_[unit]->on_group_complete();
}

bool PassRunner::stays_whole(const FlatGroup& group) const {
  return adds_up_whole_ && group.plan().shard_size > 1;
}

void PassRunner::free_reduced_buffer() {
  if (!reducing_) return;
  GroupGradient& gradient = *std::exchange(reducing_, nullptr);
  gradient.finish_scatter();
  if (gradient.reducing()) averaging_.push_back(&gradient);
}

void PassRunner::reduce(FlatGroup& group) {
  free_reduced_buffer();
  GroupGradient& gradient = group.gradients();
  gradient.begin_reduce(/*over_copies=*/gradient_sync_);
  if (gradient.holds_buffer())
    reducing_ = &gradient;
  else if (gradient.reducing())
    averaging_.push_back(&gradient);
}

void PassRunner::finish_backward() {
  backward_task_ = -1;
  for (FlatGroup* group : active_) {
    const GroupGradient& gradient = group->gradients();
    if (gradient_sync_ ? gradient.owes_ranks() : gradient.has_unreduced() && !stays_whole(*group))
      reduce(*group);
  }
  free_reduced_buffer();
  for (GroupGradient* gradient : std::exchange(averaging_, {})) gradient->finish_reduce();
  for (auto& unit : units_) unit->close_calls();
  end_pass();
}

}  // namespace floe::shard
