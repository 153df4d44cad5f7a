// Where an engine meets a module: what happens around its forward.
//
// Note [Boundaries]
// A module that can be a unit carries a BoundarySlot. `nn::call` looks into the slot on every call:
// empty, it runs forward and nothing else. The sharding engine puts a Boundary there; then the call
// is before_forward → forward → after_forward. Both may replace the tensors they are shown (to cast
// them, or to put autograd nodes on them), never their number or order.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace floe::nn {

// The tensors among a call's arguments or results, in order; undefined ones are left out.
using TensorRefs = c10::SmallVector<at::Tensor*, 8>;

class Boundary {
 public:
  virtual ~Boundary() = default;
  virtual void before_forward(TensorRefs& inputs) = 0;
  virtual void after_forward(TensorRefs& outputs) = 0;
};

// What stays of a checkpointed module from its forward to its backward, besides its
// inputs, and where.
struct KeptActivations {
  bool products = false;  // results of matrix products and attention: what is recomputed is cheap
  bool in_host = false;   // what stays waits in host memory, pinned beside an accelerator
  std::int64_t in_host_from = 1 << 20;  // bytes; smaller tensors wait where they are
};

struct BoundarySlot {
  Boundary* boundary = nullptr;  // not owned; the engine that sets it also clears it
  bool checkpointed = false;     // recompute the forward in backward instead of storing it
  KeptActivations kept;          // ... when it is checkpointed
  bool trains = true;            // some parameter inside may require a gradient
};

// A tensor that may be undefined, for torch's operators and autograd functions: an undefined tensor
// has no device, which those would ask it for.
using MaybeTensor = std::optional<at::Tensor>;

inline MaybeTensor some(const at::Tensor& tensor) {
  return tensor.defined() ? MaybeTensor(tensor) : std::nullopt;
}
inline at::Tensor tensor_of(const MaybeTensor& maybe) { return maybe.value_or(at::Tensor()); }

// ---- the tensors inside arguments and results of any shape ----
//
// Understood: at::Tensor, std::optional, std::vector, std::array, std::pair, std::tuple of such,
// and any struct with a member `template <class F> void visit_tensors(F&& f)` that calls f on each
// of its parts. Everything else has no tensors.
template <class T>
concept HasVisitTensors = requires(T value) {
  value.visit_tensors([](auto&) {});
};

template <class T, class F>
void visit_tensors(T& value, F&& f);

namespace detail {

template <class T>
struct Visit {
  template <class F>
  static void run(T& value, F& f) {
    if constexpr (HasVisitTensors<T>)
      value.visit_tensors([&](auto& part) { visit_tensors(part, f); });
  }
};
template <>
struct Visit<at::Tensor> {
  template <class F>
  static void run(at::Tensor& value, F& f) {
    if (value.defined()) f(value);
  }
};
template <class T>
struct Visit<std::optional<T>> {
  template <class F>
  static void run(std::optional<T>& value, F& f) {
    if (value) visit_tensors(*value, f);
  }
};
template <class T>
struct Visit<std::vector<T>> {
  template <class F>
  static void run(std::vector<T>& value, F& f) {
    for (auto& part : value) visit_tensors(part, f);
  }
};
template <class T, std::size_t N>
struct Visit<std::array<T, N>> {
  template <class F>
  static void run(std::array<T, N>& value, F& f) {
    for (auto& part : value) visit_tensors(part, f);
  }
};
template <class A, class B>
struct Visit<std::pair<A, B>> {
  template <class F>
  static void run(std::pair<A, B>& value, F& f) {
    visit_tensors(value.first, f);
    visit_tensors(value.second, f);
  }
};
template <class... T>
struct Visit<std::tuple<T...>> {
  template <class F>
  static void run(std::tuple<T...>& value, F& f) {
    std::apply([&](auto&... parts) { (visit_tensors(parts, f), ...); }, value);
  }
};

}  // namespace detail

template <class T, class F>
void visit_tensors(T& value, F&& f) {
  detail::Visit<T>::run(value, f);
}

template <class T>
TensorRefs tensors_of(T& value) {
  TensorRefs refs;
  visit_tensors(value, [&](at::Tensor& tensor) { refs.push_back(&tensor); });
  return refs;
}

}  // namespace floe::nn
