#include "floe/shard/engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "floe/batch/packed_batch.h"
#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/nn/activations/checkpoint.h"
#include "floe/shard/group/fill.h"
#include "floe/shard/pass/agreement.h"
#include "floe/shard/pass/operator_watch.h"
#include "floe/shard/pass/schedule.h"
#include "floe/shard/pass/unit.h"

namespace floe::shard {
namespace {

// Names the set that the model itself or `trainable` chose, so that others can be added to it.
void name_first_set(ShardOptions& options, const ShardPlan& plan) {
  if (!options.sets.empty()) return;
  ParameterSet set{.name = "trainable"};
  for (const PlannedParameter& parameter : plan.parameters)
    if (parameter.trainable) set.patterns.push_back(parameter.name);
  options.sets.push_back(std::move(set));
}

std::shared_ptr<comm::World> required(std::shared_ptr<comm::World> world) {
  require<ConfigError>(world != nullptr,
                       "ShardOptions::world is missing: pass comm::World::join()");
  return world;
}

void cast_buffers(torch::nn::Module& model, const MixedPrecision& mixed, c10::Device device) {
  const at::AutoGradMode grad_off(false);
  for (at::Tensor& buffer : model.buffers()) {
    const bool floating = at::isFloatingType(buffer.scalar_type());
    const auto dtype = floating && mixed.buffer ? *mixed.buffer : buffer.scalar_type();
    if (buffer.scalar_type() != dtype || buffer.device() != device)
      buffer.set_data(buffer.to(device, dtype));
  }
}

at::TensorOptions doubles_on(c10::Device device) {
  return at::TensorOptions().dtype(at::kDouble).device(device);
}

}  // namespace

std::shared_ptr<Engine> fully_shard(std::shared_ptr<torch::nn::Module> model, const Policy& policy,
                                    const ShardOptions& options) {
  return std::make_shared<Engine>(std::move(model), policy, options);
}

Engine::Engine(std::shared_ptr<torch::nn::Module> model, const Policy& policy, ShardOptions options)
    : model_(std::move(model)),
      policy_(policy),
      options_(std::move(options)),
      plan_(make_plan(*model_, policy, options_, required(options_.world)->size())),
      context_(options_.world, plan_.pool_bytes(), plan_.held().gradient_buffers),
      alive_(std::make_shared<Engine*>(this)) {
  for (const PlannedUnit& unit : plan_.units)
    require<ConfigError>(!unit.slot || !unit.slot->boundary, "unit '", unit.label(),
                         "' is sharded already; call fully_shard once per model");
  context_.parameter_buffer_ahead = [this](std::int64_t bytes) {
    return any_group_ahead([bytes](const Step&, const FlatGroup& group) {
      return !group.whole() &&
             (group.plan().gathered_bytes() == bytes || group.plan().staging_bytes() == bytes);
    });
  };
  context_.gradient_buffer_ahead = [this](std::int64_t bytes) {
    return any_group_ahead([bytes](const Step& step, const FlatGroup& group) {
      return step.kind == Step::Kind::backward && !group.complete() &&
             group.plan().gradient_bytes() == bytes;
    });
  };
  compare_plans(agreed_lines(plan_, options_), *context_.world);
  for (const PlannedGroup& group : plan_.groups)
    groups_.push_back(std::make_unique<FlatGroup>(groups_.size(), group, plan_, context_));
  check_source(plan_, options_);
  // One group at a time: a foreign module's memory is freed as soon as its slice is taken.
  for (auto& group : groups_) {
    fill_group(*group, options_);
    group->adopt_parameters();
  }
  name_first_set(options_, plan_);
  cast_buffers(*model_, options_.mixed_precision, context_.device);
  connect();
}

Engine::~Engine() {
  *alive_ = nullptr;
  nn::remove_recompute_listener(this);
  for (auto& unit : units_)
    if (unit->plan().slot && unit->plan().slot->boundary == unit.get())
      unit->plan().slot->boundary = nullptr;
  for (const PlannedCheckpoint& checkpoint : plan_.checkpointed)
    checkpoint.slot->checkpointed = false, checkpoint.slot->kept = {};
  remove_hooks();
}

void Engine::connect() {
  connect_units();
  for (const PlannedCheckpoint& checkpoint : plan_.checkpointed) {
    checkpoint.slot->checkpointed = true;
    checkpoint.slot->kept = options_.kept_activations;
  }
  follow_active();
  nn::add_recompute_listener(this, [this] {
    if (schedule_.open()) enter_backward();
  });
}

void Engine::connect_units() {
  watch_.reset();
  units_.clear();
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    std::vector<FlatGroup*> groups;
    for (const std::size_t g : plan_.units[u].groups) groups.push_back(groups_[g].get());
    units_.push_back(std::make_unique<Unit>(u, *this, plan_.units[u], std::move(groups)));
    if (nn::BoundarySlot* slot = plan_.units[u].slot) slot->boundary = units_.back().get();
  }
}

// ---- around a unit's calls ----

void Engine::visit(Unit& unit, Step::Kind kind, std::uint64_t groups) {
  const auto pass = at::GradMode::is_enabled() || kind == Step::Kind::backward
                        ? Schedule::PassKind::train
                        : Schedule::PassKind::evaluate;
  // A pass whose end nobody could see (no backward came, the root has no boundary) ends when one of
  // another kind begins, or the same one anew.
  if (schedule_.open() && forward_depth_ == 0 && context_.phase == Phase::forward &&
      (pass != schedule_.kind() || schedule_.begins_with(unit.id())) && !any_call_waits())
    end_pass();
  if (!schedule_.open()) schedule_.begin(pass);
  if (kind == Step::Kind::forward) {
    if (forward_depth_ == 0 && context_.phase != Phase::backward) enter_autocast();
    forward_depth_ += 1;
    if (context_.phase != Phase::backward) context_.phase = Phase::forward;
  }
  schedule_.record({unit.id(), kind, groups});
  context_.tell(
      kind == Step::Kind::forward ? Event::Kind::begin_forward : Event::Kind::begin_backward,
      unit.label(), "", 0);
  unit.gather(groups);
  prefetch();
}

void Engine::left(Unit& unit) {
  context_.tell(Event::Kind::end_forward, unit.label(), "", 0);
  schedule_.record({unit.id(), Step::Kind::leave, 0});
  forward_depth_ -= 1;
  if (forward_depth_ > 0 || context_.phase == Phase::backward) return;
  leave_autocast();
  // A pass ends with its backward. Where none will come (no gradients, or nothing that has one), it ends
  // with the root's forward; a root without a boundary is never seen to end, so there it goes on.
  if (unit.id() + 1 == units_.size() && !any_call_waits()) end_pass();
}

bool Engine::any_call_waits() const {
  return std::any_of(units_.begin(), units_.end(), [](const auto& unit) { return unit->waits(); });
}

void Engine::enter_autocast() {
  if (!options_.autocast || autocast_) return;
  autocast_.emplace(context_.device.type(), *options_.autocast);
}

void Engine::leave_autocast() { autocast_.reset(); }

void Engine::prefetch() {
  int depth = 0;
  for (const Step* step = schedule_.ahead_begin(); step != schedule_.ahead_end(); ++step) {
    if (depth >= options_.prefetch) return;
    if (step->kind == Step::Kind::leave) continue;
    const Unit& unit = *units_[step->unit];
    bool in_use = true;
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < unit.groups().size(); ++i) {
      const FlatGroup& group = *unit.groups()[i];
      if (!(step->groups >> i & 1) || group.plan().in_place()) continue;
      in_use = in_use && group.held();
      if (!group.whole()) bytes += group.plan().gathered_bytes() + group.plan().staging_bytes();
    }
    if (in_use) continue;
    if (bytes > 0 && !context_.pool.has_room(bytes)) return;
    for (std::size_t i = 0; i < unit.groups().size(); ++i)
      if (step->groups >> i & 1) unit.groups()[i]->begin_gather(unit.label(), /*ahead=*/true);
    depth += 1;
  }
}

bool Engine::next_is_backward_of(const Unit& unit) const {
  for (const Step* step = schedule_.ahead_begin(); step != schedule_.ahead_end(); ++step) {
    if (step->kind == Step::Kind::leave) continue;
    if (step->unit == unit.id()) return step->kind == Step::Kind::backward;
    const auto& groups = units_[step->unit]->groups();
    for (std::size_t i = 0; i < groups.size(); ++i)
      if (step->groups >> i & 1 && !groups[i]->plan().in_place() && !groups[i]->held())
        return false;
  }
  return false;
}

bool Engine::used_again(const FlatGroup& group) const {
  const auto& users = group.plan().units;
  if (users.size() < 2) return false;
  for (const Step* step = schedule_.ahead_begin(); step != schedule_.ahead_end(); ++step)
    if (step->kind == Step::Kind::forward &&
        std::find(users.begin(), users.end(), step->unit) != users.end())
      return true;
  return false;
}

template <class F>
bool Engine::any_group_ahead(F&& fits) const {
  int visits = 0;
  for (const Step* step = schedule_.ahead_begin(); step != schedule_.ahead_end(); ++step) {
    if (step->kind == Step::Kind::leave) continue;
    if (visits++ > options_.prefetch + 1)
      return false;  // far ahead: an idle buffer is not worth it
    for (const FlatGroup* group : units_[step->unit]->groups())
      if (fits(*step, *group)) return true;
  }
  return false;
}

void Engine::end_pass() {
  if (schedule_.open()) schedule_.end();
  context_.phase = Phase::idle;
  if (watch_) watch_->release_all();
  for (auto& group : groups_) group->drop_unused();
  context_.pool.trim();
  context_.gradient_pool.trim();
}

void Engine::abandon() {
  forward_depth_ = 0;
  backward_task_ = -1;
  for (auto& unit : units_) unit->abandon_calls();
  for (auto& group : groups_) group->reset();
  reducing_ = nullptr;
  leave_autocast();
  schedule_.cancel();
  end_pass();
}

// ---- backward ----

void Engine::enter_backward() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (nn::recomputing() || task == backward_task_) return;
  backward_task_ = task;
  context_.phase = Phase::backward;
  if (std::exchange(arrivals_due_, false))
    for (SliceOwner* owner : owners_) owner->arrive();
  for (FlatGroup* group : active_) group->begin_backward();
  torch::autograd::Engine::get_default_engine().queue_callback([alive = alive_] {
    if (*alive) (*alive)->finish_backward();
  });
}

void Engine::on_gradient(FlatGroup& group, std::size_t index) {
  enter_backward();
  // A reduction that is over gives its buffer back before the next one is opened. On the CPU, where a
  // reduction needs the same cores as backward, nothing is gained by opening a second one beside it.
  const bool opens = !group.has_unreduced();
  if (reducing_ && (reducing_->reduced() || (opens && context_.device.is_cpu())))
    std::exchange(reducing_, nullptr)->finish_reduce();
  if (!group.accumulate(index)) return;
  if (gradient_sync_) reduce(group);
  for (const std::size_t unit : group.plan().units) units_[unit]->on_group_complete();
}

void Engine::reduce(FlatGroup& group) {
  if (reducing_) reducing_->finish_reduce();
  group.begin_reduce();
  reducing_ = group.reducing() ? &group : nullptr;
}

void Engine::finish_backward() {
  backward_task_ = -1;
  if (gradient_sync_)
    for (FlatGroup* group : active_)
      if (group->has_unreduced()) reduce(*group);
  if (reducing_) std::exchange(reducing_, nullptr)->finish_reduce();
  for (auto& unit : units_) unit->close_calls();
  end_pass();
}

// ---- between steps ----

void Engine::measure_local_gradients(bool on) {
  context_.measure_gradients = on;
  context_.gradient_norms.clear();
}

double Engine::take_local_square() {
  if (context_.gradient_norms.empty()) return 0;
  const at::Tensor norms = at::stack(context_.gradient_norms);
  context_.gradient_norms.clear();
  return norms.square().sum().item<double>();
}

Agreement Engine::agree(bool locally_finite, std::span<const double> values,
                        const at::Tensor& on_device) {
  const at::AutoGradMode grad_off(false);
  const at::Tensor found = on_device.defined() ? on_device.to(at::kDouble).reshape({-1})
                                               : at::empty({0}, doubles_on(context_.device));
  const at::Tensor norms = gradient_norms();
  // Reduced gradients carry what is bad on any rank, so they do not say of this one that it is.
  at::Tensor own_bad = found.isfinite().all().logical_not().view({1});
  if (!locally_finite) own_bad.fill_(true);
  const at::Tensor bad = own_bad.logical_or(norms.isfinite().all().logical_not());
  const OnDevice more{
      at::nan_to_num(at::cat({norms.square().sum().view({1}), bad, found}), 0.0, 0.0, 0.0),
      own_bad.to(at::kDouble)};
  const std::size_t count = values.size() + static_cast<std::size_t>(more.summed.numel());
  context_.tell(Event::Kind::agree, "", "",
                static_cast<std::int64_t>((Ledger::kWords + count) * sizeof(double)));
  std::vector<double> sums =
      sum_with_ledger({values.begin(), values.end()}, context_.ledger, *context_.world, more);
  // Behind the values: the squares, on how many ranks something is bad, then what is on the device; last
  // whether this rank is one of them.
  Agreement result;
  result.locally_finite = sums.back() == 0;
  sums.pop_back();
  const auto squares = sums.begin() + static_cast<std::ptrdiff_t>(values.size());
  result.finite = squares[1] == 0;
  result.gradient_norm = result.finite ? std::sqrt(squares[0]) : std::nan("");
  sums.erase(squares, squares + 2);
  result.sums = std::move(sums);
  return result;
}

at::Tensor Engine::gradient_norms() const {
  std::vector<at::Tensor> gradients;
  std::vector<double> shares;
  for (const FlatGroup* group : active_) {
    if (!group->gradient().defined()) continue;
    gradients.push_back(group->gradient());
    shares.push_back(1 / std::sqrt(group->plan().replicas));
  }
  if (gradients.empty()) return at::zeros({1}, doubles_on(context_.device));
  at::Tensor norms = at::stack(at::_foreach_norm(gradients, 2)).to(at::kDouble);
  if (norms.device() != context_.device) norms = to_device(norms, context_.device);
  if (std::any_of(shares.begin(), shares.end(), [](double share) { return share != 1; }))
    norms = norms * to_device(at::tensor(shares, at::kDouble), context_.device);
  return norms;
}

void Engine::clear_gradients() {
  for (FlatGroup* group : active_) group->clear_gradient();
}

bool Engine::any_rank_has(bool work) {
  return sum_with_ledger({work ? 1.0 : 0.0}, context_.ledger, *context_.world)[0] > 0;
}

void Engine::empty_forward() {
  const at::AutoGradMode grad_off(false);
  const std::vector<Step> steps = forward_steps(schedule_, plan_);
  for (const Step& step : steps) {
    Unit& unit = *units_[step.unit];
    if (step.kind == Step::Kind::forward) {
      visit(unit, Step::Kind::forward, step.groups);
    } else {
      for (std::size_t i = 0; i < unit.groups().size(); ++i)
        unit.groups()[i]->drop(unit.label(), used_again(*unit.groups()[i]));
      left(unit);
    }
  }
}

// ---- looking inside ----

FlatGroup& Engine::group_of(const std::string& name, std::size_t& index) {
  std::vector<std::string> names;
  for (auto& group : groups_)
    for (std::size_t i = 0; i < group->plan().parameters.size(); ++i) {
      const PlannedParameter& parameter = group->parameter(i);
      const auto& others = parameter.other_names;
      if (parameter.name == name || std::find(others.begin(), others.end(), name) != others.end()) {
        index = i;
        return *group;
      }
      names.push_back(parameter.name);
    }
  throw ShardError(str("there is no parameter '", name, "'", did_you_mean(name, names)));
}

at::Tensor Engine::full_parameter(const std::string& name) {
  std::size_t i = 0;
  FlatGroup& group = group_of(name, i);
  const auto& layout = group.plan().layout;
  return group.gather_values()
      .narrow(0, layout.offset(i), layout.numel(i))
      .view(group.parameter(i).shape);
}

at::Tensor Engine::full_gradient(const std::string& name) {
  std::size_t i = 0;
  FlatGroup& group = group_of(name, i);
  const auto& layout = group.plan().layout;
  const at::Tensor whole = group.gather_gradient();
  if (!whole.defined()) return whole;
  return whole.narrow(0, layout.offset(i), layout.numel(i)).view(group.parameter(i).shape);
}

void Engine::remove_observer(Observer* observer) { std::erase(context_.observers, observer); }

MemoryInUse Engine::memory() const {
  MemoryInUse memory;
  for (const auto& group : groups_) {
    const auto bytes = static_cast<std::int64_t>(group->shard().nbytes());
    (group->plan().active      ? memory.trainable_shards
     : group->plan().trainable ? memory.resting_shards
                               : memory.frozen_shards) += bytes;
    memory.stored_masters += group->stored_bytes();
    memory.gradient_shards += group->gradient_bytes();
  }
  memory.pool_held = context_.pool.held_bytes();
  memory.pool_used = context_.pool.used_bytes();
  memory.pool_peak = context_.pool.peak_bytes();
  memory.gradient_pool_held = context_.gradient_pool.held_bytes();
  memory.gradient_pool_peak = context_.gradient_pool.peak_bytes();
  return memory;
}

void Engine::reset_memory_peaks() {
  context_.pool.reset_peak();
  context_.gradient_pool.reset_peak();
}

}  // namespace floe::shard
