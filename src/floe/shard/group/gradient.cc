#include "floe/shard/group/gradient.h"

#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/shard/group/flat_group.h"

namespace floe::shard {
namespace {

// How autograd tells a listener.
class GradientHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(GradientListener& listener, FlatGroup& group, std::size_t index)
      : listener_(listener), group_(group), index_(index) {}
  void operator()(const torch::autograd::Variable&) override {
    listener_.on_gradient(group_, index_);
  }

 private:
  GradientListener& listener_;
  FlatGroup& group_;
  std::size_t index_;
};

}  // namespace

GroupGradient::GroupGradient(FlatGroup& group, Context& context, const comm::Mesh& mesh)
    : group_(group),
      context_(context),
      mesh_(mesh),
      filled_(group.plan().parameters.size(), false),
      arrived_(filled_) {}

void GroupGradient::enter(GradientState next) {
  require<ShardError>(may_follow(state_, next), "the gradient of '", group_.name(), "' is ",
                      name_of(state_), " and cannot become ", name_of(next),
                      "; after a failure call Engine::abandon before the next pass");
  state_ = next;
}

void GroupGradient::set_listener(GradientListener* listener) {
  for (std::size_t i = 0; i < arrived_.size(); ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(
        group_.leaf(i), listener ? std::make_unique<GradientHook>(*listener, group_, i) : nullptr);
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

bool GroupGradient::take_over(const at::Tensor& gradient) {
  const PlannedGroup& plan = group_.plan();
  if (plan.parameters.size() != 1 || buffer_.defined() ||
      plan.layout.padded_numel() != plan.layout.numel() ||
      gradient.scalar_type() != plan.reduce_dtype || !gradient.is_contiguous())
    return false;
  if (in_place() && (slice_.defined() || context_.gradients_stay)) return false;
  // An all-reduce writes, and this gradient may share memory with one that is still on its way.
  if (plan.shard_size == 1 && plan.replicas > 1) return false;
  buffer_ = gradient.view({-1});
  if (in_place()) slice_ = buffer_;
  return true;
}

void GroupGradient::close_buffer() {
  buffer_ = at::Tensor();
  if (pooled_.defined())
    context_.gradient_pool.give_back(std::move(pooled_), context_.forecast->gradient_buffer_ahead(
                                                             group_.plan().gradient_bytes()));
  pooled_ = at::Tensor();
  filled_.assign(filled_.size(), false);
}

// ---- from autograd into the buffer ----

void GroupGradient::begin_backward() {
  arrived_.assign(arrived_.size(), false);
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
  if (take_over(gradient)) {
    gradient.reset();
    filled_[index] = arrived_[index] = true;
    num_arrived_ = 1;
    enter(GradientState::collecting);
    return true;
  }
  open_buffer();
  const FlatLayout& layout = group_.plan().layout;
  at::Tensor place = buffer_.narrow(0, layout.offset(index), layout.numel(index))
                         .view(group_.parameter(index).shape);
  if (filled_[index])
    place.add_(gradient);
  else
    place.copy_(gradient);
  gradient.reset();
  filled_[index] = true;
  enter(GradientState::collecting);
  if (arrived_[index]) return false;
  arrived_[index] = true;
  num_arrived_ += 1;
  return complete();
}

// ---- from the buffer into the slice ----

void GroupGradient::begin_reduce() {
  const at::AutoGradMode grad_off(false);
  const PlannedGroup& plan = group_.plan();
  for (std::size_t i = 0; i < filled_.size(); ++i)
    if (!filled_[i]) buffer_.narrow(0, plan.layout.offset(i), plan.layout.numel(i)).zero_();
  filled_.assign(filled_.size(), true);
  if (context_.measure_gradients)
    context_.gradient_norms.push_back(
        at::linalg_vector_norm(buffer_, 2, std::nullopt, false, at::toOpMathType(plan.reduce_dtype))
            .to(at::kDouble));
  if (plan.shard_size == 1 && plan.replicas == 1 && in_place()) return enter(GradientState::local);

  enter(GradientState::reducing);
  const bool sliced = plan.shard_size > 1;
  const std::int64_t slice_bytes =
      plan.layout.slice_numel() * static_cast<std::int64_t>(c10::elementSize(plan.reduce_dtype));
  if (sliced) {
    context_.collectives.add("reduce-scatter", group_.id(), plan.name, plan.gradient_bytes());
    context_.emit(Event::Kind::reduce, "", plan.name, buffer_);
    const bool straight = !slice_.defined() && plan.reduce_dtype == plan.storage_dtype &&
                          group_.slice().device() == context_.device;
    result_ = straight ? slice_memory() : at::empty({plan.layout.slice_numel()}, buffer_.options());
    if (straight) slice_ = result_;
  } else {
    result_ = buffer_;
  }
  if (plan.replicas > 1) {
    context_.collectives.add("all-reduce", group_.id(), plan.name, slice_bytes);
    context_.emit(sliced ? Event::Kind::replicate : Event::Kind::reduce, "", plan.name, result_);
  }
  reduction_ = context_.side.run([&]() -> comm::Work {
    comm::Work work;
    if (sliced)
      work = mesh_.shard->reduce_scatter(result_, buffer_, comm::Reduce::average, plan.name);
    if (plan.replicas > 1) {
      work.wait();
      work = mesh_.replicate->all_reduce(result_, comm::Reduce::average, plan.name);
    }
    return work;
  });
}

void GroupGradient::finish_reduce() {
  if (!reduction_.pending()) return;
  const at::AutoGradMode grad_off(false);
  context_.emit(Event::Kind::begin_wait, "", group_.name(), 0);
  const double seconds = reduction_.timed_wait();
  context_.emit(Event::Kind::wait, "", group_.name(), 0, seconds);
  if (!slice_.defined() && context_.gradients_stay) {
    slice_ = slice_memory();
    slice_.copy_(result_);
  } else if (!slice_.defined()) {
    slice_ = result_.to(group_.slice().device(), group_.slice().scalar_type());
    if (pooled_.defined() && slice_.is_alias_of(pooled_)) slice_ = slice_.clone();
  } else if (!slice_.is_alias_of(result_)) {
    slice_.add_(result_.to(slice_.device()));
  }
  result_ = at::Tensor();
  close_buffer();
  enter(GradientState::reduced);
}

void GroupGradient::clear() {
  finish_reduce();
  close_buffer();
  slice_ = at::Tensor();
  enter(GradientState::none);
}

void GroupGradient::reset() noexcept {
  try {
    finish_reduce();
  } catch (const std::exception& e) {
    log::debug("given up: ", e.what());
  }
  close_buffer();
  slice_ = result_ = at::Tensor();
  state_ = GradientState::none;
}

void GroupGradient::restore(GradientState state) {
  require<ShardError>(state != GradientState::collecting && state != GradientState::reducing,
                      "a pass that leaves the gradient of '", group_.name(), "' ", name_of(state),
                      " cannot be repeated; record it with gradient sync");
  close_buffer();
  enter(GradientState::none);
  slice_ = state == GradientState::none ? at::Tensor() : slice_memory();
  if (state == GradientState::local) {  // what arrives next is added to it
    buffer_ = slice_;
    filled_.assign(filled_.size(), true);
  }
  enter(state);
}

}  // namespace floe::shard
