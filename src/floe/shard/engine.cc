#include "floe/shard/engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "floe/batch/packed_batch.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/core/names.h"
#include "floe/kernels/eight_bit/fp8_product.h"
#include "floe/shard/engine_state.h"
#include "floe/shard/group/fill.h"
#include "floe/shard/pass/agreement.h"

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

// Products in 8 bits are asked for where they can be computed.
void check_products(const ShardPlan& plan, c10::Device device) {
  for (const PlannedGroup& group : plan.groups) {
    if (!group.multiplies) continue;
    const std::string why = kernels::why_no_fp8_products(device, group.param_dtype);
    require<ConfigError>(why.empty(), "FrozenOptions::compute: fp8 ", why, "; leave it out");
    if (device.is_cpu())
      log::warn(
          "products in fp8 are emulated on the CPU: their numbers are those of a GPU up to "
          "the order of sums, their speed is not");
    return;
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

Engine::State::State(std::shared_ptr<torch::nn::Module> sharded, const Policy& units,
                     ShardOptions chosen)
    : model(std::move(sharded)),
      policy(units),
      options(std::move(chosen)),
      plan(make_plan(*model, policy, options, required(options.world)->size())),
      context(options.world, plan.pool_bytes(), plan.held().gradient_buffers) {}

Engine::Engine(std::shared_ptr<torch::nn::Module> model, const Policy& policy, ShardOptions options)
    : state_(std::make_unique<State>(std::move(model), policy, std::move(options))) {
  for (const PlannedUnit& unit : state_->plan.units)
    require<ConfigError>(!unit.slot || !unit.slot->boundary, "unit '", unit.label(),
                         "' is sharded already; call fully_shard once per model");
  // Before the first collective: a rank that waits in one ends with another rank's error, not with
  // its own.
  for (const PlannedGroup& group : state_->plan.groups)
    state_->context.world->check_mesh(group.shard_size);
  check_products(state_->plan, state_->context.device);
  compare_plans(agreed_lines(state_->plan, state_->options), *state_->context.world);
  for (const PlannedGroup& group : state_->plan.groups)
    state_->groups.push_back(
        std::make_unique<FlatGroup>(state_->groups.size(), group, state_->plan, state_->context));
  check_source(state_->plan, state_->options);
  // One group at a time: a foreign module's memory is freed as soon as its slice is taken.
  for (auto& group : state_->groups) {
    fill_group(*group, state_->options);
    group->adopt_parameters();
  }
  name_first_set(state_->options, state_->plan);
  cast_buffers(*state_->model, state_->options.mixed_precision, state_->context.device);
  state_->runner = std::make_unique<PassRunner>(state_->plan, state_->options, state_->context);
  state_->runner->connect(state_->groups);
  for (const PlannedCheckpoint& checkpoint : state_->plan.checkpointed) {
    checkpoint.slot->checkpointed = true;
    checkpoint.slot->kept = state_->options.kept_activations;
  }
  follow_active();
}

Engine::~Engine() {
  for (const PlannedCheckpoint& checkpoint : state_->plan.checkpointed)
    checkpoint.slot->checkpointed = false, checkpoint.slot->kept = {};
}

// ---- between steps ----

void Engine::set_gradient_sync(bool on) { state_->runner->set_gradient_sync(on); }

void Engine::abandon() { state_->runner->abandon(); }

void Engine::measure_local_gradients(bool on) {
  state_->context.measure_gradients = on;
  state_->context.gradient_norms.clear();
}

double Engine::take_local_square() {
  if (state_->context.gradient_norms.empty()) return 0;
  const at::Tensor norms = at::stack(state_->context.gradient_norms);
  state_->context.gradient_norms.clear();
  return norms.square().sum().item<double>();
}

Agreement Engine::agree(bool locally_finite, std::span<const double> values,
                        const at::Tensor& on_device) {
  const at::AutoGradMode grad_off(false);
  for (const FlatGroup* group : state_->active)
    require<ShardError>(!group->gradients().owes_ranks(), "the gradient of '", group->name(),
                        "' is not summed over all ranks: call set_gradient_sync(true) before the "
                        "last backward of an update");
  const at::Tensor found = on_device.defined() ? on_device.to(at::kDouble).reshape({-1})
                                               : at::empty({0}, doubles_on(state_->context.device));
  const at::Tensor norms = gradient_norms();
  // Reduced gradients carry what is bad on any rank, so they do not say of this one that it is.
  at::Tensor own_bad = found.isfinite().all().logical_not().view({1});
  if (!locally_finite) own_bad.fill_(true);
  const at::Tensor bad = own_bad.logical_or(norms.isfinite().all().logical_not());
  const OnDevice more{
      at::nan_to_num(at::cat({norms.square().sum().view({1}), bad, found}), 0.0, 0.0, 0.0),
      own_bad.to(at::kDouble)};
  const std::size_t count = values.size() + static_cast<std::size_t>(more.summed.numel());
  state_->context.emit(
      Event::Kind::agree, "", "",
      static_cast<std::int64_t>((CollectiveHash::kWords + count) * sizeof(double)));
  std::vector<double> sums = sum_and_compare(
      {values.begin(), values.end()}, state_->context.collectives, *state_->context.world, more);
  // Behind the values: the squares, on how many ranks something is bad, then what is on the device;
  // last whether this rank is one of them.
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
  for (const FlatGroup* group : state_->active) {
    const at::Tensor& slice = group->gradient();
    if (!slice.defined()) continue;
    // Of a slice that several ranks hold each one reads a part.
    const std::int64_t replicas = group->plan().replicas, replica = group->replica();
    const std::int64_t begin = slice.numel() * replica / replicas,
                       end = slice.numel() * (replica + 1) / replicas;
    if (begin < end) gradients.push_back(slice.slice(0, begin, end));
  }
  if (gradients.empty()) return at::zeros({1}, doubles_on(state_->context.device));
  const at::Tensor norms = at::stack(at::_foreach_norm(gradients, 2)).to(at::kDouble);
  return norms.device() == state_->context.device ? norms
                                                  : to_device(norms, state_->context.device);
}

void Engine::clear_gradients() {
  for (FlatGroup* group : state_->active) group->gradients().clear();
}

bool Engine::any_rank_has(bool work) {
  return sum_and_compare({work ? 1.0 : 0.0}, state_->context.collectives,
                         *state_->context.world)[0] > 0;
}

std::vector<bool> Engine::any_rank_has(const std::vector<bool>& work) {
  const auto sums = sum_and_compare({work.begin(), work.end()}, state_->context.collectives,
                                    *state_->context.world);
  std::vector<bool> any;
  for (const double sum : sums) any.push_back(sum > 0);
  return any;
}

void Engine::empty_forward() { state_->runner->empty_forward(); }

// ---- looking inside ----

FlatGroup& Engine::group_of(const std::string& name, std::size_t& index) {
  std::vector<std::string> names;
  for (auto& group : state_->groups)
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
  at::Tensor whole = group.gather_gradient();
  if (!whole.defined()) return whole;
  return whole.narrow(0, layout.offset(i), layout.numel(i)).view(group.parameter(i).shape);
}

const ShardOptions& Engine::options() const { return state_->options; }

comm::World& Engine::world() const { return *state_->context.world; }

torch::nn::Module& Engine::model() const { return *state_->model; }

HeldBytes Engine::held() const { return state_->plan.held(); }

MovedBytes Engine::moved() const { return state_->plan.moved(); }

const std::vector<ParameterSet>& Engine::sets() const { return state_->plan.sets; }

std::size_t Engine::active_set() const { return state_->plan.active_set; }

const ShardPlan& Engine::plan() const { return state_->plan; }

std::span<FlatGroup* const> Engine::trainable_groups() const { return state_->trainable; }

std::span<FlatGroup* const> Engine::active_groups() const { return state_->active; }

const std::vector<std::unique_ptr<FlatGroup>>& Engine::groups() const { return state_->groups; }

void Engine::add_owner(SliceOwner* owner) { state_->context.owners.push_back(owner); }

void Engine::remove_owner(SliceOwner* owner) { std::erase(state_->context.owners, owner); }

SideStream& Engine::move_stream() { return state_->context.moves; }

void Engine::add_observer(Observer* observer) { state_->context.observers.push_back(observer); }

void Engine::remove_observer(Observer* observer) {
  std::erase(state_->context.observers, observer);
}

MemoryInUse Engine::memory() const {
  MemoryInUse memory;
  for (const auto& group : state_->groups) {
    const auto bytes = static_cast<std::int64_t>(
        group->slice().nbytes() +
        (group->transposed().defined() ? group->transposed().nbytes() : 0));
    (group->plan().active      ? memory.trainable_slices
     : group->plan().trainable ? memory.resting_slices
                               : memory.frozen_slices) += bytes;
    memory.stored_masters += group->stored_bytes();
    memory.gradient_slices += group->gradients().slice_bytes();
  }
  memory.pool_held = state_->context.pool.held_bytes();
  memory.pool_used = state_->context.pool.used_bytes();
  memory.pool_peak = state_->context.pool.peak_bytes();
  memory.gradient_pool_held = state_->context.gradient_pool.held_bytes();
  memory.gradient_pool_peak = state_->context.gradient_pool.peak_bytes();
  return memory;
}

void Engine::reset_memory_peaks() {
  state_->context.pool.reset_peak();
  state_->context.gradient_pool.reset_peak();
}

}  // namespace floe::shard
