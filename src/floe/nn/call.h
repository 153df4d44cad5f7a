// Calling a module through its boundary (see Note [Boundaries]).
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "floe/nn/activations/checkpoint.h"
#include "floe/nn/boundary.h"

namespace floe::nn {
namespace detail {

template <class Args, class Forward>
auto run_checkpointed(const BoundarySlot& slot, Args& args, Forward forward) {
  TensorRefs inputs = tensors_of(args);
  bool has_backward = slot.trains;
  for (const at::Tensor* input : inputs) has_backward = has_backward || input->requires_grad();
  if (!has_backward) return std::apply(forward, args);
  Checkpoint checkpoint(inputs, slot.kept);
  auto result = [&] {
    const FirstRun first_run(checkpoint, slot);
    return std::apply(forward, args);
  }();
  // The tensors among the arguments are the checkpoint's to hold.
  auto others = args;
  for (at::Tensor* tensor : tensors_of(others)) *tensor = no_tensor();
  TensorRefs outputs = tensors_of(result);
  checkpoint.attach(outputs, [forward, others](const std::vector<at::Tensor>& tensors) {
    auto again = others;
    TensorRefs slots = tensors_of(again);
    for (std::size_t i = 0; i < tensors.size(); ++i) *slots[i] = tensors[i];
    auto rerun = std::apply(forward, again);
    std::vector<at::Tensor> outputs;
    for (at::Tensor* tensor : tensors_of(rerun)) outputs.push_back(*tensor);
    return outputs;
  });
  return result;
}

}  // namespace detail

// Runs `forward(args...)` inside the boundary of `slot`.
template <class Forward, class... Args>
auto call_through(BoundarySlot& slot, const Forward& forward, Args&&... arguments) {
  if (!slot.boundary && !slot.checkpointed) return forward(std::forward<Args>(arguments)...);
  std::tuple<std::decay_t<Args>...> args(std::forward<Args>(arguments)...);
  if (slot.boundary) {
    TensorRefs inputs = tensors_of(args);
    slot.boundary->before_forward(inputs);
  }
  auto result = slot.checkpointed && at::GradMode::is_enabled()
                    ? detail::run_checkpointed(slot, args, forward)
                    : std::apply(forward, args);
  if (slot.boundary) {
    TensorRefs outputs = tensors_of(result);
    slot.boundary->after_forward(outputs);
  }
  return result;
}

// Calls a module that carries a BoundarySlot.
template <class M, class... Args>
auto call(M& module, Args&&... args) {
  return call_through(
      module, [&module](auto&&... a) { return module.forward(std::forward<decltype(a)>(a)...); },
      std::forward<Args>(args)...);
}

// Owns a module and calls it through its boundary: `block(x)`.
template <class M>
class Ptr {
 public:
  Ptr() = default;
  explicit Ptr(std::shared_ptr<M> module) : module_(std::move(module)) {}

  template <class... Args>
  auto operator()(Args&&... args) const {
    return call(*module_, std::forward<Args>(args)...);
  }
  M* operator->() const { return module_.get(); }
  M& operator*() const { return *module_; }
  explicit operator bool() const { return module_ != nullptr; }
  const std::shared_ptr<M>& ptr() const { return module_; }

 private:
  std::shared_ptr<M> module_;
};

namespace detail {

template <class Impl, class Signature>
class HookedForward;

template <class Impl, class Base, class Result, class... Args>
class HookedForward<Impl, Result (Base::*)(Args...)> : public Impl, public BoundarySlot {
 public:
  using Impl::Impl;
  Result forward(Args... args) {
    return call_through(
        *this, [this](auto&&... a) { return Impl::forward(std::forward<decltype(a)>(a)...); },
        std::forward<Args>(args)...);
  }
};

template <class Impl, class Base, class Result, class... Args>
class HookedForward<Impl, Result (Base::*)(Args...) const>
    : public HookedForward<Impl, Result (Base::*)(Args...)> {
 public:
  using HookedForward<Impl, Result (Base::*)(Args...)>::HookedForward;
};

}  // namespace detail

// A foreign torch::nn module with a boundary: one word per unit.
//
//   auto block = std::make_shared<nn::Hooked<torch::nn::TransformerEncoderLayerImpl>>(options);
//   sequential->push_back(block);           // still a TransformerEncoderLayerImpl, same names
//
// Hooked derives from the module, so that parameter names, options and containers stay as they are;
// its `forward` has the same parameters (without their default values: pass them all). It needs a
// forward that is neither overloaded nor a template. Containers that make their own children, such
// as torch::nn::TransformerEncoder, cannot take it: the engine then gathers by watching operators
// (ShardOptions::watch_operators).
template <class Impl>
class Hooked : public detail::HookedForward<Impl, decltype(&Impl::forward)> {
 public:
  using detail::HookedForward<Impl, decltype(&Impl::forward)>::HookedForward;
};

}  // namespace floe::nn
