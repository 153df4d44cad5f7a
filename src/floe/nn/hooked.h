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
#pragma once

#include <torch/nn/module.h>

#include <utility>

#include "floe/nn/call.h"

namespace floe::nn {
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

template <class Impl>
class Hooked : public detail::HookedForward<Impl, decltype(&Impl::forward)> {
 public:
  using detail::HookedForward<Impl, decltype(&Impl::forward)>::HookedForward;
};

}  // namespace floe::nn
