#include "floe/shard/group/gradient.h"

#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/kernels/rehearsal.h"
#include "floe/shard/group/flat_group.h"

namespace floe::shard {
namespace {

// How autograd tells a listener.
class GradientHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(GradientListener& listener, FlatGroup& group, std::size_t index)
      : listener_(listener), group_(group), index_(index) {}
  void operator()(const torch::autograd::Variable&) override try {
    listener_.on_gradient(group_, index_);
  } catch (...) {  // nothing of a broken pass is added to what the next one brings
    group_.leaf(index_).mutable_grad().reset();
    throw;
  }

 private:
  GradientListener& listener_;
  FlatGroup& group_;
  std::size_t index_;
};

// Whether what this thread computes now stands in the same queue as the hooks of the leaf do, which
// take its gradient in and give buffers back. On the CPU all does.
bool computes_where_hooks_do(const at::Tensor& leaf) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(leaf);
  const auto stream = accumulator ? accumulator->stream() : std::nullopt;
  if (!stream) return true;
  const c10::impl::VirtualGuardImpl guard(stream->device_type());
  return guard.getStream(stream->device()) == *stream;
}

}  // namespace

GroupGradient::GroupGradient(FlatGroup& group, Context& context, const comm::Mesh& mesh)
    : group_(group), context_(context), mesh_(mesh), parts_(group.plan().parameters.size()) {}

void GroupGradient::enter(GradientState next) {
  require<ShardError>(may_follow(state_, next), "the gradient of '", group_.name(), "' is ",
                      name_of(state_), " and cannot become ", name_of(next),
                      "; after a failure call Engine::abandon before the next pass");
  state_ = next;
}

void GroupGradient::set_listener(GradientListener* listener) {
  listener_ = listener;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(
        group_.leaf(i), listener ? std::make_unique<GradientHook>(*listener, group_, i) : nullptr);
    nn::set_gradient_place(group_.leaf(i), listener ? this : nullptr, i);
  }
}

// ---- memory ----

bool GroupGradient::in_place() const {
  const PlannedGroup& plan = group_.plan();
  return plan.shard_size == 1 && plan.reduce_dtype == plan.storage_dtype &&
         group_.slice().device() == context_.device;
}

at::Tensor GroupGradient::slice_memory() {
  if (context_.gradients_stay && kept_memory_.defined()) return kept_memory_;
  const at::Tensor memory =
      at::empty({group_.plan().layout.slice_numel()}, group_.slice().options());
  if (context_.gradients_stay) kept_memory_ = memory;
  return memory;
}

std::int64_t GroupGradient::slice_bytes() const {
  const at::Tensor& memory = slice_.defined() ? slice_ : kept_memory_;
  return memory.defined() ? static_cast<std::int64_t>(memory.nbytes()) : 0;
}

void GroupGradient::open_buffer() {
  if (buffer_.defined()) return;
  const PlannedGroup& plan = group_.plan();
  if (in_place() && state_ == GradientState::none) {
    slice_ = slice_memory();
    buffer_ = slice_;
  } else {
    pooled_ = context_.gradient_pool.take(plan.gradient_bytes());
    buffer_ = pooled_.narrow(0, 0, plan.gradient_bytes()).view(plan.reduce_dtype);
  }
  const std::int64_t padding = plan.layout.padded_numel() - plan.layout.numel();
  if (padding > 0) buffer_.narrow(0, plan.layout.numel(), padding).zero_();
}

bool GroupGradient::takes_over(at::ScalarType dtype) const {
  const PlannedGroup& plan = group_.plan();
  if (plan.parameters.size() != 1 || buffer_.defined() ||
      plan.layout.padded_numel() != plan.layout.numel() || dtype != plan.reduce_dtype)
    return false;
  if (in_place() && (slice_.defined() || context_.gradients_stay)) return false;
  // An all-reduce writes, and this gradient may share memory with one that is still on its way.
  return plan.shard_size > 1 || plan.replicas == 1;
}

bool GroupGradient::take_over(const at::Tensor& gradient) {
  if (!gradient.is_contiguous() || !takes_over(gradient.scalar_type())) return false;
  buffer_ = gradient.view({-1});
  if (in_place()) slice_ = buffer_;
  return true;
}

void GroupGradient::close_buffer() {
  buffer_ = at::Tensor();
  if (std::exchange(buffer_leaves_, false)) flight_.hold_compute();
  if (pooled_.defined())
    context_.gradient_pool.give_back(std::move(pooled_), context_.forecast->gradient_buffer_ahead(
                                                             group_.plan().gradient_bytes()));
  pooled_ = at::Tensor();
  for (Part& part : parts_) part.filled = part.given = false;
}

// ---- from autograd into the buffer ----

void GroupGradient::begin_backward() {
  for (Part& part : parts_) part.arrived = part.given = false;  // of a pass that broke, perhaps
  num_arrived_ = 0;
}

bool GroupGradient::accumulate(std::size_t index) {
  const at::AutoGradMode grad_off(false);
  at::Tensor leaf = group_.leaf(index);
  at::Tensor& gradient = leaf.mutable_grad();
  if (!gradient.defined()) return false;
  // A second arrival in one backward (a recomputed unit that ran twice) must not write into what is
  // being reduced.
  finish_reduce();
  Part& part = parts_[index];
  if (take_over(gradient)) {
    gradient.reset();
    part.filled = part.arrived = true;
    num_arrived_ = 1;
    enter(GradientState::collecting);
    return true;
  }
  open_buffer();
  const at::Tensor place = place_of(index);
  const bool lies_there = gradient.const_data_ptr() == place.const_data_ptr();
  // See Note [Wide places]: what it is now cannot be told from its values.
  require(!part.given || lies_there || gradient.scalar_type() == place.scalar_type(),
          "the gradient of '", group_.parameter(index).name,
          "' was changed behind the product that had written it to its place; this is a mistake of "
          "floe's: please report it");
  if (part.filled)
    place.add_(gradient);
  else if (!lies_there)
    place.copy_(gradient);
  gradient.reset();
  part.given = false;
  part.filled = true;
  enter(GradientState::collecting);
  if (part.arrived) return false;
  part.arrived = true;
  num_arrived_ += 1;
  return complete();
}

at::Tensor GroupGradient::place_of(std::size_t index) const {
  const FlatLayout& layout = group_.plan().layout;
  return buffer_.narrow(0, layout.offset(index), layout.numel(index))
      .view(group_.parameter(index).shape);
}

bool GroupGradient::takes(at::ScalarType dtype) const {
  const at::ScalarType wanted = group_.plan().reduce_dtype;
  if (dtype == wanted) return true;
  // See Note [Wide places]; the CPU has no such products, and torch refuses them where it tunes.
  static const char* tunes = std::getenv("PYTORCH_TUNABLEOP_ENABLED");
  return wanted == at::kFloat && (dtype == at::kBFloat16 || dtype == at::kHalf) &&
         !kernels::acts_as_cpu(context_.device) && (!tunes || *tunes != '1');
}

at::Tensor GroupGradient::take_place(std::size_t index, at::ScalarType dtype) {
  const at::Tensor& leaf = group_.leaf(index);
  const bool wide = dtype != group_.plan().reduce_dtype;
  if (!takes(dtype) || parts_[index].filled || reducing() || takes_over(dtype) ||
      (wide && leaf.scalar_type() != dtype) || !computes_where_hooks_do(leaf) ||
      !nn::gets_one_gradient(leaf, /*held=*/1))  // by the group
    return {};
  listener_->before_gradient(group_);
  open_buffer();
  parts_[index].given = true;
  return place_of(index);
}

// ---- from the buffer into the slice ----

bool GroupGradient::owes_ranks() const {
  return state_ == GradientState::collecting || state_ == GradientState::partial ||
         (state_ == GradientState::local && group_.plan().replicas > 1);
}

bool GroupGradient::slice_in_host() const { return group_.slice().device() != context_.device; }

void GroupGradient::begin_reduce(bool over_copies) {
  const at::AutoGradMode grad_off(false);
  const PlannedGroup& plan = group_.plan();
  const bool arrived = has_unreduced();
  if (arrived) {
    for (std::size_t i = 0; i < parts_.size(); ++i)
      if (!std::exchange(parts_[i].filled, true))
        buffer_.narrow(0, plan.layout.offset(i), plan.layout.numel(i)).zero_();
    if (context_.measure_gradients)
      context_.gradient_norms.push_back(at::linalg_vector_norm(buffer_, 2, std::nullopt, false,
                                                               at::toOpMathType(plan.reduce_dtype))
                                            .to(at::kDouble));
  }
  const bool scatters = arrived && plan.shard_size > 1;
  const bool averages = over_copies && plan.replicas > 1;
  if (!scatters && !averages && buffer_is_slice()) return enter(GradientState::local);

  enter(GradientState::reducing);
  reduction_.adds_slice = averages && slice_partial_ && arrived;
  reduction_.takes_place = averages && (slice_partial_ || !arrived);
  slice_partial_ = plan.replicas > 1 && !averages;
  if (scatters) {
    context_.collectives.add("reduce-scatter", group_.id(), plan.name, plan.gradient_bytes());
    context_.emit(Event::Kind::reduce, "", plan.name, buffer_);
    const bool straight =
        !slice_.defined() && plan.reduce_dtype == plan.storage_dtype && !slice_in_host();
    reduction_.result =
        straight ? slice_memory() : at::empty({plan.layout.slice_numel()}, buffer_.options());
    if (straight) slice_ = reduction_.result;
  } else if (arrived || buffer_is_slice()) {
    reduction_.result = buffer_;
  } else {  // the last pass left nothing here: what the copies are summed of is the slice
    reduction_.result = slice().to(context_.device, plan.reduce_dtype);
  }
  if (averages)  // here, and not when it is issued, since all ranks are here in the same order
    context_.collectives.add("all-reduce", group_.id(), plan.name,
                             static_cast<std::int64_t>(reduction_.result.nbytes()));
  if (scatters)
    reduction_.scatter = context_.side.run([&] {
      return mesh_.shard->reduce_scatter(reduction_.result, buffer_, comm::Reduce::average,
                                         plan.name);
    });
  // An accelerator's stream waits for the first half; on the CPU somebody has to.
  reduction_.average_due = averages && scatters && kernels::acts_as_cpu(context_.device);
  if (averages && !reduction_.average_due) begin_average();
  if (!averages && !scatters) end_reduce();
}

void GroupGradient::begin_average() {
  reduction_.average_due = false;
  context_.emit(group_.plan().shard_size > 1 ? Event::Kind::replicate : Event::Kind::reduce, "",
                group_.name(), reduction_.result);
  if (reduction_.adds_slice) land();
  reduction_.average = context_.between.run_after(reduction_.scatter, [&] {
    if (reduction_.adds_slice)
      reduction_.result.add_(slice_.to(reduction_.result.device(), /*non_blocking=*/true));
    return mesh_.replicate->all_reduce(reduction_.result, comm::Reduce::average, group_.name());
  });
}

bool GroupGradient::buffer_is_free() const {
  return reduction_.scatter.pending() ? reduction_.scatter.done() : reduction_.average.done();
}

void GroupGradient::finish_scatter() {
  if (!reduction_.scatter.pending()) {
    if (holds_buffer()) finish_average();
    if (buffer_leaves_) let_go_of_buffer();
    return;
  }
  const bool average_due =
      std::exchange(reduction_.average_due, false);  // not where this half has failed
  wait_for(reduction_.scatter);
  close_buffer();
  if (average_due) begin_average();
  if (!reduction_.average.pending()) end_reduce();
}

void GroupGradient::finish_average() {
  if (!reduction_.average.pending()) return;
  wait_for(reduction_.average);
  end_reduce();
}

void GroupGradient::finish_reduce() {
  if (reduction_.scatter.pending()) finish_scatter();
  finish_average();
  if (buffer_leaves_) let_go_of_buffer();
}

void GroupGradient::wait_for(SideOp& op) {
  context_.emit(Event::Kind::begin_wait, "", group_.name(), 0);
  const double seconds = op.timed_wait();
  context_.emit(Event::Kind::wait, "", group_.name(), 0, seconds);
}

void GroupGradient::end_reduce() {
  const at::AutoGradMode grad_off(false);
  take_result();
  reduction_ = {};
  if (!buffer_leaves_) let_go_of_buffer();
}

void GroupGradient::let_go_of_buffer() {
  close_buffer();
  enter(slice_partial_ ? GradientState::partial : GradientState::reduced);
}

void GroupGradient::take_result() {
  const bool first = !slice_.defined() || reduction_.takes_place;
  if (slice_.defined() && slice_.is_alias_of(reduction_.result)) return;
  if (slice_in_host()) {  // behind what else computes; whoever reads the slice waits for it
    land();
    const at::Tensor values = reduction_.result.to(group_.slice().scalar_type());
    const at::Tensor host = at::empty(values.sizes(), group_.slice().options().pinned_memory(true));
    flight_ = context_.moves.run([&]() -> comm::Work {
      host.copy_(values, /*non_blocking=*/true);
      return {};
    });
    context_.moves.keeps(values);
    buffer_leaves_ = pooled_.defined() && values.is_alias_of(pooled_);
    (first ? slice_ : landing_) = host;
  } else if (!first) {
    slice_.add_(reduction_.result);
  } else if (context_.gradients_stay) {
    slice_ = slice_memory();
    slice_.copy_(reduction_.result);
  } else {
    slice_ = reduction_.result.to(group_.slice().scalar_type());
    if (pooled_.defined() && slice_.is_alias_of(pooled_)) slice_ = slice_.clone();
  }
}

void GroupGradient::land() const {
  if (!flight_.pending()) return;
  const at::AutoGradMode grad_off(false);
  flight_.wait_on_host();
  if (landing_.defined()) slice_.add_(landing_);
  landing_ = at::Tensor();
}

void GroupGradient::clear() {
  finish_reduce();
  close_buffer();
  forget_slice();
  enter(GradientState::none);
}

void GroupGradient::forget_slice() {
  flight_ = {};
  slice_ = landing_ = at::Tensor();
  slice_partial_ = false;
}

void GroupGradient::reset() noexcept {
  for (SideOp* op : {&reduction_.scatter, &reduction_.average}) try {
      op->wait();
    } catch (const std::exception& e) {
      log::debug("given up: ", e.what());
    }
  close_buffer();
  forget_slice();
  reduction_ = {};
  state_ = GradientState::none;
}

void GroupGradient::restore(GradientState state) {
  require<ShardError>(
      state != GradientState::collecting && state != GradientState::reducing,
      "a pass that leaves the gradient of '", group_.name(), "' ", name_of(state),
      " cannot be repeated; let reduced gradients add up (ShardOptions::accumulate)");
  close_buffer();
  enter(GradientState::none);
  slice_ = state == GradientState::none ? at::Tensor() : slice_memory();
  slice_partial_ = state == GradientState::partial;
  if (state == GradientState::local) {  // what arrives next is added to it
    buffer_ = slice_;
    for (Part& part : parts_) part.filled = true;
  }
  enter(state);
}

}  // namespace floe::shard
