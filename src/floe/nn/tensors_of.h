// Finding the tensors inside arguments and results of any shape.
//
// Understood: at::Tensor, std::optional, std::vector, std::array, std::pair, std::tuple of such, and
// any struct with a member `template <class F> void visit_tensors(F&& f)` that calls f on each of its
// parts. Everything else has no tensors.
#pragma once

#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "floe/nn/boundary.h"

namespace floe::nn {

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
